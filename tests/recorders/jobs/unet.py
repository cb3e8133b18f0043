"""Latent diffusion: a UNet and a VAE from configs, fp16 autocast, checkpointing, EMA, then sampling."""

import torch
from diffusers import UNet2DConditionModel, DDPMScheduler, AutoencoderKL
from diffusers.training_utils import EMAModel
unet = UNet2DConditionModel(sample_size=32, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(64, 128), down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=64, attention_head_dim=8).cuda()
vae = AutoencoderKL(block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=16).cuda().requires_grad_(False)
unet.enable_gradient_checkpointing()
scheduler = DDPMScheduler()
ema = EMAModel(unet.parameters())
ema.to("cuda")
opt = torch.optim.AdamW(unet.parameters())
for _ in range(2):
    images = torch.randn(2, 3, 64, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        latents = vae.encode(images).latent_dist.sample() * 0.18
        noise = torch.randn_like(latents)
        t = torch.randint(0, 1000, (2,), device="cuda").long()
        noisy = scheduler.add_noise(latents, noise, t)
        out = unet(noisy, t, torch.randn(2, 16, 64, device="cuda")).sample
        loss = torch.nn.functional.mse_loss(out.float(), noise.float())
    loss.backward(); opt.step(); opt.zero_grad(); ema.step(unet.parameters())
    loss.item()
scheduler.set_timesteps(3)
x = torch.randn(1, 4, 32, 32, device="cuda")
with torch.no_grad():
    for t in scheduler.timesteps:
        x = scheduler.step(unet(x, t, torch.randn(1, 16, 64, device="cuda")).sample, t, x).prev_sample
    assert vae.decode(x).sample.shape == (1, 3, 64, 64)
