# ruff: noqa: T201 - a script as users write them
"""One of several architectures in a plain float32 loop, from a configuration. Knows nothing of oomdoc."""

import argparse
import tempfile

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--device", default="cuda")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--depth", type=int, default=6)
parser.add_argument("--length", type=int, default=256)
parser.add_argument("--attention", default="sdpa")
parser.add_argument("--bf16", action="store_true", help="the whole model in bfloat16")
parser.add_argument("--keep-gradients", action="store_true", help="zero them in place")
parser.add_argument("--step-in-backward", action="store_true")
parser.add_argument("--keep-products", action="store_true", help="selective checkpointing of the mixer's layers")
parser.add_argument("--no-cache", action="store_true", help="of keys and values")
parser.add_argument("--load", default=None, help="load a checkpoint to this device first")
args = parser.parse_args()
torch.manual_seed(0)
count, width, depth, length = args.batch_size * args.steps, args.width, args.depth, args.length
VOCAB = 8000


def policy():
    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}

    def keep(_context, op, *_args, **_options):
        return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(keep)


class Bottleneck(nn.Module):
    """A residual block of three convolutions, as in ResNet-50."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        middle = outside // 4
        self.conv1, self.bn1 = nn.Conv2d(inside, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv2, self.bn2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv3, self.bn3 = nn.Conv2d(middle, outside, 1, bias=False), nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.down is not None:
            x = self.down(x)
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        stages, inside = [], 64
        for outside in (256, 512, 1024):
            blocks = [Bottleneck(inside if i == 0 else outside, outside, 2 if i == 0 else 1) for i in range(3)]
            stages.append(nn.Sequential(*blocks))
            inside = outside
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inside, 1000)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))


class Mixer(nn.Module):
    """Layers without attention, written with functions inside the block."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens = nn.ModuleList([nn.Linear(length, length), nn.Linear(length, length)])
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            y = self.norm1(x).transpose(1, 2)
            for layer in self.tokens:
                y = nn.functional.gelu(layer(y))
            x = x + y.transpose(1, 2)
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.layers = nn.ModuleList(Mixer.Layer() for _ in range(depth))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, context_fn=policy) if args.keep_products else layer(x)
        return self.head(x.mean(dim=1))


def language(name):
    import transformers as hf

    ids = torch.randint(0, VOCAB, (count, length))
    heads = width // 64
    if name == "gpt2":
        config = hf.GPT2Config(vocab_size=VOCAB, n_embd=width, n_layer=depth, n_head=heads, n_positions=length)
        config._attn_implementation = args.attention
        return hf.GPT2LMHeadModel(config), ids
    if name == "bert":
        config = hf.BertConfig(
            vocab_size=VOCAB, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads,
            intermediate_size=4 * width, max_position_embeddings=length,
        )  # fmt: skip
        return hf.BertForMaskedLM(config), ids
    if name == "qwen2":
        config = hf.Qwen2Config(
            vocab_size=VOCAB, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads,
            num_key_value_heads=max(1, heads // 4), intermediate_size=3 * width, max_position_embeddings=length,
        )  # fmt: skip
        return hf.Qwen2ForCausalLM(config), ids
    if name == "opt":
        config = hf.OPTConfig(
            vocab_size=VOCAB, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads,
            ffn_dim=4 * width, max_position_embeddings=length, word_embed_proj_dim=width,
        )  # fmt: skip
        return hf.OPTForCausalLM(config), ids
    if name == "neox":
        config = hf.GPTNeoXConfig(
            vocab_size=VOCAB, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads,
            intermediate_size=4 * width, max_position_embeddings=length,
        )  # fmt: skip
        return hf.GPTNeoXForCausalLM(config), ids
    if name == "gemma":
        config = hf.GemmaConfig(
            vocab_size=VOCAB, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads, head_dim=64,
            num_key_value_heads=1, intermediate_size=4 * width, max_position_embeddings=length,
        )  # fmt: skip
        return hf.GemmaForCausalLM(config), ids
    if name in ("t5", "t5-lora"):
        config = hf.T5Config(
            vocab_size=VOCAB, d_model=width, d_ff=4 * width, d_kv=64, num_layers=depth // 2, num_heads=heads,
            decoder_start_token_id=0, use_cache=False,
        )  # fmt: skip
        model = hf.T5ForConditionalGeneration(config)
        if name == "t5-lora":
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["q", "v", "wi", "wo"]))
        return model, ids
    raise SystemExit(f"no model called {name}")


class Residual(nn.Module):
    """Two convolutions between group norms, as in a diffusion model."""

    def __init__(self, inside, outside):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x):
        h = self.conv1(nn.functional.silu(self.norm1(x)))
        h = self.conv2(nn.functional.silu(self.norm2(h)))
        return self.skip(x) + h


class UNet(nn.Module):
    """Down and up again, each level joined to its own on the way back; predicts the noise in its input."""

    def __init__(self):
        super().__init__()
        widths = (128, 256, 512)
        self.stem = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down = nn.ModuleList(Residual(a, b) for a, b in zip((widths[0], *widths), widths, strict=False))
        self.middle = Residual(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            Residual(a + b, b) for a, b in zip((widths[-1], *reversed(widths)), reversed(widths), strict=False)
        )
        self.head = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x):
        x, kept = self.stem(x), []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, kept.pop()], dim=1))
        return self.head(x)


def loss_of(model, x, y):
    if args.model == "unet":
        return nn.functional.mse_loss(model(x), x)
    if args.model in ("resnet", "mixer"):
        return nn.functional.cross_entropy(model(x), y)
    if args.model in ("vit", "convnext"):
        return nn.functional.cross_entropy(model(pixel_values=x).logits, y)
    if args.model == "whisper":
        return model(input_features=x, labels=y[:, None].expand(-1, length // 4)).loss
    return model(input_ids=x, labels=x).loss


labels = torch.randint(0, 1000, (count,))
if args.model == "resnet":
    model, data = ResNet(), torch.randn(count, 3, 128, 128)
elif args.model == "mixer":
    model, data = Mixer(), torch.randn(count, length, 64)
elif args.model == "unet":
    model, data = UNet(), torch.randn(count, 4, 64, 64)
elif args.model == "convnext":
    import transformers as hf

    config = hf.ConvNextConfig(hidden_sizes=[96, 192, 384, 768], depths=[2, 2, 4, 2], num_labels=1000, image_size=128)
    model, data = hf.ConvNextForImageClassification(config), torch.randn(count, 3, 128, 128)
elif args.model == "whisper":
    import transformers as hf

    config = hf.WhisperConfig(
        vocab_size=VOCAB, d_model=width, encoder_layers=depth, decoder_layers=depth,
        encoder_attention_heads=width // 64,
        decoder_attention_heads=width // 64, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        max_source_positions=length, max_target_positions=length, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    model, data = hf.WhisperForConditionalGeneration(config), torch.randn(count, 80, 2 * length)
elif args.model == "vit":
    import transformers as hf

    config = hf.ViTConfig(
        hidden_size=width, num_hidden_layers=depth, num_attention_heads=width // 64, intermediate_size=4 * width,
        image_size=128, patch_size=8, num_labels=1000,
    )  # fmt: skip
    model, data = hf.ViTForImageClassification(config), torch.randn(count, 3, 128, 128)
else:
    model, data = language(args.model)
if args.no_cache:
    model.config.use_cache = False
model = model.to(args.device).train()
if args.load:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), f"{folder}/weights.pt")
        weights = torch.load(f"{folder}/weights.pt", map_location=args.load)
    model.load_state_dict(weights)
if args.bf16:
    model = model.to(torch.bfloat16)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
if args.step_in_backward:
    own = {p: torch.optim.AdamW([p], lr=1e-4) for p in model.parameters()}

    def step_and_clear(p):
        own[p].step()
        own[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_and_clear)
for x, y in DataLoader(TensorDataset(data, labels), batch_size=args.batch_size):
    x, y = x.to(args.device), y.to(args.device)
    if args.bf16 and x.is_floating_point():
        x = x.to(torch.bfloat16)
    loss = loss_of(model, x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=not args.keep_gradients)
    print(f"loss {loss.item():.4f}", flush=True)
