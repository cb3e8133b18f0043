"""Lightning: fit with accumulation and clipping, validate, checkpoint, resume in another precision, load."""

import tempfile, os, torch, lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 10))
    def training_step(self, batch, index):
        x, y = batch
        assert x.is_cuda
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss
    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))
    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)}
def loader():
    return DataLoader(TensorDataset(torch.randn(64, 256), torch.randint(0, 10, (64,))), batch_size=16, num_workers=1, pin_memory=True)
folder = tempfile.mkdtemp()
model = Net()
trainer = L.Trainer(max_epochs=2, accelerator="gpu", devices=1, precision="bf16-mixed", accumulate_grad_batches=2, gradient_clip_val=1.0, default_root_dir=folder, logger=False, enable_progress_bar=False,
    callbacks=[L.pytorch.callbacks.ModelCheckpoint(folder, monitor="val_loss", save_last=True)])
trainer.fit(model, loader(), loader())
assert trainer.global_step == 4
assert os.path.exists(os.path.join(folder, "last.ckpt"))
print(trainer.validate(model, loader()))
again = L.Trainer(max_epochs=3, accelerator="gpu", devices=1, precision="16-mixed", default_root_dir=folder, logger=False, enable_progress_bar=False, enable_checkpointing=False)
again.fit(Net(), loader(), ckpt_path=os.path.join(folder, "last.ckpt"), weights_only=False)
assert again.global_step > 4
loaded = Net.load_from_checkpoint(os.path.join(folder, "last.ckpt"), weights_only=False)
assert loaded.device.type == "cuda", loaded.device
