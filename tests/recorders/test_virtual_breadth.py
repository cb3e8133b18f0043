"""Operations that models use beside the common ones: they run, or say what is not seen."""

import pytest
import torch
from oomdoc.recorders.virtual.session import Session
from torch import nn
from torch.nn import functional as F  # noqa: N812  # everyone's name for it


def test_ctc_keeps_its_table(gpu: Session) -> None:
    """log-alpha: batch x time x (2 x longest target + 1) floats."""
    x = torch.randn(20, 8, 10, device="cuda").log_softmax(-1).detach().requires_grad_()
    targets = torch.randint(1, 10, (8, 5)).cuda()
    before = torch.cuda.memory_allocated()
    loss = F.ctc_loss(x, targets, torch.full((8,), 20), torch.full((8,), 5), reduction="none")
    table = 8 * 20 * 11 * 4
    assert torch.cuda.memory_allocated() - before >= -(-table // 512) * 512
    loss.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_transformer_encoder_in_evaluation_says_what_it_does_not_see(gpu: Session) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 2).cuda().eval()
    x = torch.randn(4, 16, 64, device="cuda")
    with torch.no_grad():
        out = model(x, src_key_padding_mask=torch.zeros(4, 16, dtype=torch.bool, device="cuda"))
    assert out.shape == (4, 16, 64)
    assert any("nested tensors" in note for note in gpu.notes)
    assert any("are not seen" in note for note in gpu.notes)


def test_sparse_gradients_are_their_parts(gpu: Session) -> None:
    """Indices and values are counted, not a dense gradient."""
    layer = nn.Embedding(100000, 16, sparse=True).cuda()
    before = torch.cuda.memory_allocated()
    layer(torch.zeros(6, 10, dtype=torch.int64, device="cuda")).sum().backward()
    assert torch.cuda.memory_allocated() - before < 100000 * 16 * 4 / 10


def test_solvers_are_named_as_missing(gpu: Session) -> None:
    torch.linalg.inv(torch.randn(8, 8, device="cuda"))
    assert any("linalg_inv" in source and "not modelled" in source for source in gpu.tracker.estimated)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_convolutional_network_trains_channels_last(gpu: Session, autocast: bool) -> None:
    """Depthwise, transposed, batch and group norm, pooling: forward, backward and evaluation."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.ConvTranspose2d(16, 8, 4, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    model = model.cuda().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.float16, enabled=autocast):
        out = model(x)
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())
    with torch.inference_mode():
        assert model.eval()(x).shape == (4, 4)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        lambda x, t: F.multi_margin_loss(x, t),
        lambda x, t: F.kl_div(x.log_softmax(-1), x.softmax(-1).detach(), reduction="batchmean"),
        lambda x, t: F.binary_cross_entropy_with_logits(x, x.detach(), pos_weight=torch.ones(10, device="cuda")),
        lambda x, t: F.triplet_margin_loss(x, x.detach(), x.detach() + 1),
        lambda x, t: x.std() + x.var() + x.norm() + torch.logsumexp(x, 0).sum(),
        lambda x, t: torch.cdist(x, x).sum() + torch.dist(x, x.detach()),
    ],
)
def test_losses_have_gradients(gpu: Session, loss: object) -> None:
    x = torch.randn(8, 10, device="cuda", requires_grad=True)
    assert callable(loss)
    loss(x, torch.zeros(8, dtype=torch.int64, device="cuda")).backward()
    assert x.grad is not None
