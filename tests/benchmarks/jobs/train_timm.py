"""What timm's train.py does with its defaults: SGD with Nesterov momentum, label smoothing, prefetching on a stream.

`oomdoc run --gpu a100-40gb train_timm.py resnet50 64`; images are zeros of the model's own size.
"""

import sys
from collections.abc import Iterator

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Images:
    """What a DataLoader gives to timm's PrefetchLoader: bytes, on the host."""

    def __init__(self, count: int, batch: int, shape: tuple[int, ...]) -> None:
        self.count, self.batch, self.shape = count, batch, shape

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.count):
            yield torch.zeros(self.batch, *self.shape, dtype=torch.uint8), torch.zeros(self.batch, dtype=torch.int64)


def loss_of_batch(model: nn.Module, loss: nn.Module, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A function of its own, as in train.py: the logits live no longer than their saved copies."""
    result: torch.Tensor = loss(model(image), target)
    return result


def main(name: str, batch: int, steps: int = 3) -> None:
    """Train for `steps` steps."""
    import timm_anyway  # before timm
    import timm
    from timm.data import resolve_data_config
    from timm.data.loader import PrefetchLoader
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    model = timm.create_model(name)
    data = resolve_data_config({}, model=model)
    model.to(device=device)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.1, weight_decay=2e-5, momentum=0.9)
    images = Images(steps + 1, batch, data["input_size"])
    loader = PrefetchLoader(images, mean=data["mean"], std=data["std"], device=device)
    label_smoothing = LabelSmoothingCrossEntropy(smoothing=0.1).to(device=device)
    model.train()
    optimizer.zero_grad()
    for step, (image, target) in enumerate(loader):
        if step == steps:
            break
        loss = loss_of_batch(model, label_smoothing, image, target)
        loss.backward()
        optimizer.step()
        loss.item()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
