"""The price of moving bytes between the card and the host, as a factor of the step time."""

from typing import TYPE_CHECKING

from ..interface import Band
from .links import card, host_bandwidth, pageable_share, table
from .step_time import step_seconds

if TYPE_CHECKING:
    from ..estimating import Case

# Where the step time is not known: measured for optimizer state, +20 % (torchao, ViT-giant on an RTX 4070 Ti SUPER)
# up to x 2.46 (DeepSpeed ZeRO-Offload untuned, same model).
UNKNOWN_STEP = Band(low=1.05, expected=1.25, high=2.5)


def transfer_factor(case: "Case", bytes_per_step: int, *, overlapped: bool) -> Band:
    """For `bytes_per_step` over PCIe in each step, both directions together.

    Low: hidden behind computation as far as it is `overlapped`; high: pageable host memory, nothing hidden.
    """
    step = step_seconds(case)
    if step is None:
        return UNKNOWN_STEP
    seconds = bytes_per_step / host_bandwidth(case.job.gpu)
    hidden = max(0.0, seconds - step.expected) if overlapped else seconds
    return Band(
        low=1 + (hidden if overlapped else 0.8 * seconds) / step.high,
        expected=1 + (0.5 * (hidden + seconds) if overlapped else seconds) / step.expected,
        high=1 + seconds / pageable_share() / step.low,
    )


def drive_factor(case: "Case", state_bytes: int) -> Band:
    """For optimizer state that is read from and written to an NVMe drive in each step.

    Low: a drive for each GPU; high: one for all GPUs of the node, each with its state.
    """
    step = step_seconds(case)
    if step is None:
        return Band(low=1.2, expected=2.0, high=6.0)
    drive = table()["nvme"]
    seconds = state_bytes / float(drive["read"]) + state_bytes / float(drive["write"])
    sharing = max(1, case.job.world_size // max(1, case.job.nnodes))
    return Band(
        low=1 + seconds / step.high,
        expected=1 + seconds * (1 + sharing) / 2 / step.expected,
        high=1 + seconds * sharing / step.low,
    )


def fetched_factor(case: "Case", cache_bytes: int) -> Band:
    """For a key-value cache that is fetched from the host for each token that is generated.

    A token reads the parameters and the cache once at the card's memory rate. Low: one long prompt, whose layers
    compute for longer than their keys and values take; expected and high: tokens, fetched behind computation or not.
    """
    spec = card(case.job.gpu)
    if spec is None or not case.facts.parameter_bytes:
        return Band(low=1.0, expected=10.0, high=50.0)
    read = (case.facts.parameter_bytes + cache_bytes) / spec.memory_bandwidth
    fetch = cache_bytes / host_bandwidth(case.job.gpu)
    return Band(low=1.0, expected=max(1.0, fetch / read), high=1 + fetch / pageable_share() / read)
