"""Remedies that are made in the script: the estimate from the run without, and the run with the change."""

from dataclasses import dataclass

from oomdoc.diagnosers.interface import DeviceProfile
from oomdoc.remedies.estimating import case_of
from oomdoc.remedies.interface import Estimate, Job, NotApplicable
from oomdoc.remedies.planner import estimate
from recordings import Recordings

SCRIPT = "train_by_hand.py"
SMALL = ("--batch-size", "2", "--length", "64")
LARGE = ("--batch-size", "32", "--length", "256")
STATES = ("--batch-size", "4", "--length", "64", "--width", "1024")
WIDE = ("--batch-size", "8", "--length", "512", "--width", "512")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`without` and `with_it` are the script's arguments; `options` choose among the remedy's settings."""

    remedy: str
    without: tuple[str, ...]
    with_it: tuple[str, ...]
    ranks: int = 1  # with it
    ranks_before: int = 1
    nodes: int = 1
    batch: int | None = None
    options: tuple[tuple[str, object], ...] = ()
    script: str = SCRIPT

    @property
    def name(self) -> str:
        return f"{self.remedy}: {' '.join(word for word in self.with_it if word not in self.without)}"


MIXER = ("mixer", "--width", "256", "--length", "128")
CHANGES = (
    Change(remedy="chunked-loss", without=LARGE, with_it=(*LARGE, "--chunks", "8")),
    Change(remedy="lora", without=STATES, with_it=(*STATES, "--lora", "16")),
    Change(remedy="lora", without=LARGE, with_it=(*LARGE, "--lora", "16")),
    Change(remedy="eight-bit-optimizer", without=STATES, with_it=(*STATES, "--eight-bit")),
    Change(remedy="fused-optimizer", without=STATES, with_it=(*STATES, "--fused")),
    Change(remedy="optimizer-in-backward", without=STATES, with_it=(*STATES, "--step-in-backward")),
    Change(remedy="optimizer-in-backward", without=LARGE, with_it=(*LARGE, "--step-in-backward")),
    Change(remedy="move-when-used", without=(*SMALL, "--spare", "cuda"), with_it=(*SMALL, "--spare", "cpu")),
    Change(remedy="detach-retained-graph", without=(*LARGE, "--keep-loss"), with_it=LARGE),
    Change(remedy="smaller-batch", without=LARGE, with_it=("--batch-size", "16", "--length", "256"), batch=32,
           options=(("batch_size", 16),)),
    Change(remedy="set-to-none", script="train_zoo.py", without=(*MIXER, "--batch-size", "32", "--keep-gradients"),
           with_it=(*MIXER, "--batch-size", "32")),
    Change(remedy="map-location", script="train_zoo.py", without=(*MIXER, "--batch-size", "2", "--load", "cuda"),
           with_it=(*MIXER, "--batch-size", "2", "--load", "cpu")),
    Change(remedy="bf16-parameters", script="train_zoo.py", without=(*MIXER, "--batch-size", "32"),
           with_it=(*MIXER, "--batch-size", "32", "--bf16")),
    Change(remedy="selective-checkpointing", script="train_zoo.py", without=(*MIXER, "--batch-size", "32"),
           with_it=(*MIXER, "--batch-size", "32", "--keep-products")),
    Change(remedy="flash-attention", script="train_zoo.py", without=("gpt2", "--length", "512", "--attention", "eager"),
           with_it=("gpt2", "--length", "512", "--attention", "sdpa")),
    Change(remedy="no-training-cache", script="train_zoo.py", without=("gpt2", "--length", "512"),
           with_it=("gpt2", "--length", "512", "--no-cache")),
    Change(remedy="offloaded-kv-cache", script="generate.py", without=(), with_it=("--cache", "offloaded")),
    Change(remedy="gradient-as-bucket-view", ranks_before=4, ranks=4, without=(*STATES, "--ddp"),
           with_it=(*STATES, "--ddp", "--bucket-view")),
    Change(remedy="zero-1", ranks_before=4, ranks=4, without=(*STATES, "--ddp"),
           with_it=(*STATES, "--ddp", "--zero-1")),
    Change(remedy="zero-1", ranks=4, batch=4, without=STATES, with_it=(*STATES, "--ddp", "--zero-1")),
    Change(remedy="fsdp", ranks=4, batch=4, without=STATES, with_it=(*STATES, "--fsdp1", "grad-op"),
           options=(("reshard_after_forward", False),)),
    Change(remedy="fsdp", ranks=4, batch=4, without=STATES, with_it=(*STATES, "--fsdp2", "blocks")),
    Change(remedy="fsdp", ranks=4, batch=4, without=STATES, with_it=(*STATES, "--fsdp1", "full"),
           options=(("reshard_after_forward", True),)),
    Change(remedy="hsdp", ranks=4, nodes=2, batch=4, without=STATES,
           with_it=(*STATES, "--fsdp2", "blocks", "--replicas", "2")),
    Change(remedy="tensor-parallel", ranks=4, batch=4, without=STATES, with_it=(*STATES, "--tensor-parallel", "plain"),
           options=(("degree", 4), ("sequence_parallel", False))),
    Change(remedy="tensor-parallel", ranks=4, batch=8, without=WIDE, with_it=(*WIDE, "--tensor-parallel", "plain"),
           options=(("degree", 4), ("sequence_parallel", False))),
    Change(remedy="tensor-parallel", ranks=4, batch=8, without=WIDE, with_it=(*WIDE, "--tensor-parallel", "sequence"),
           options=(("degree", 4), ("sequence_parallel", True))),
    Change(remedy="context-parallel", ranks=4, batch=8, without=WIDE, with_it=(*WIDE, "--context-parallel")),
    Change(remedy="parameter-offload", batch=4, without=STATES, ranks=1,
           with_it=(*STATES, "--fsdp2", "blocks", "--offload")),
    Change(remedy="wrapping-policy", ranks_before=4, ranks=4, without=(*STATES, "--fsdp2", "root"),
           with_it=(*STATES, "--fsdp2", "blocks")),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Peaks allocated in bytes; `estimate` or why there is none."""

    change: Change
    before: int
    estimate: Estimate | None
    reason: str
    seen: int

    @property
    def error(self) -> float | None:
        return None if self.estimate is None else self.estimate.predicted_peak_bytes.expected / self.seen - 1

    @property
    def in_band(self) -> bool:
        band = None if self.estimate is None else self.estimate.predicted_peak_bytes
        return band is not None and band.low <= self.seen <= band.high


def applied(record: Recordings, change: Change) -> Applied:
    plain = record(change.script, change.without, (), change.ranks_before)
    seen = record(change.script, change.with_it, (), change.ranks)
    job = Job(
        gpu="a100-80gb", capacity_bytes=None, world_size=change.ranks, nnodes=change.nodes, batch_size=change.batch
    )
    found = estimate(change.remedy, plain, job)
    chosen = None
    if not isinstance(found, NotApplicable):
        wanted = dict(change.options)
        chosen = next(e for e in found if wanted.items() <= dict(e.settings[0].options).items())
    return Applied(
        change=change,
        before=_peak(plain, job),
        estimate=chosen,
        reason=found.reason if isinstance(found, NotApplicable) else "",
        seen=_peak(seen, job),
    )


def _peak(profile: DeviceProfile, job: Job) -> int:
    return case_of(profile, job).allocated_before
