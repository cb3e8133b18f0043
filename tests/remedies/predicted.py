"""Predicted from a recording without oomdoc's key, against the run with the change on the virtual GPU."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from oomdoc.diagnosers.interface import DeviceProfile
from oomdoc.diagnosers.profile import build
from oomdoc.remedies.estimating import case_of
from oomdoc.remedies.interface import Estimate, Job, NotApplicable, Setting
from oomdoc.remedies.planner import estimate
from oomdoc.snapshots.model import Frame, Snapshot

Record = Callable[..., DeviceProfile]
RANKS = {"fsdp": 4}
CARD = ("mixed-precision", "activation-checkpointing", "gradient-accumulation", "fsdp", "cpu-offload")
ZOO = "train_zoo.py"
JOBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lm": ("train_lm.py", ("--device", "cuda", "--width", "512", "--depth", "6", "--batch-size", "64")),
    "lm, dropout": (
        "train_lm.py",
        ("--device", "cuda", "--width", "768", "--depth", "8", "--batch-size", "32", "--dropout", "0.1"),
    ),
    "encoder": ("train_encoder.py", ()),
    "llama": ("train_llama.py", ()),
    **{name: (ZOO, (name,)) for name in ("gpt2", "bert", "qwen2", "opt", "t5", "vit", "resnet", "mixer")},
    "gpt2, long": (ZOO, ("gpt2", "--length", "1024", "--batch-size", "4", "--depth", "4")),
    "resnet, large": (ZOO, ("resnet", "--batch-size", "32")),
    **{name: (ZOO, (name,)) for name in ("neox", "gemma", "whisper", "convnext", "unet", "t5-lora")},
}
HELD_OUT = ("gemma",)  # no estimate was made with it at hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One (model, remedy): peaks in bytes; `bare` and `unread` from the recording alone, `told` with oomdoc's key."""

    job: str
    setting: Setting
    bare: Estimate
    unread: Estimate  # and without the sources that the frames name, as on another machine
    told: Estimate
    verified: int

    def error(self, found: Estimate) -> float:
        return found.predicted_peak_bytes.expected / self.verified - 1


def job_for(name: str, batch: int | None) -> Job:
    return Job(gpu="a100-80gb", capacity_bytes=None, world_size=RANKS.get(name, 1), batch_size=batch)


def bare(profile: DeviceProfile, *, readable: bool = True) -> DeviceProfile:
    """The same recording as PyTorch writes it; not `readable`: its frames name files that are not here."""
    snapshot = replace(profile.snapshot, recording=None)
    return build([snapshot if readable else moved(snapshot)]).devices[0]


def moved(snapshot: Snapshot) -> Snapshot:
    frames = tuple(Frame(f"/elsewhere{f.filename}", f.line, f.name) for f in snapshot.stacks.frames)
    return replace(snapshot, stacks=replace(snapshot.stacks, frames=frames))


def pairs(record: Record, job: str, names: tuple[str, ...] = CARD, at_most: int = 2) -> list[Pair]:
    """Every setting of every remedy that applies, each run again; `at_most` settings of each remedy."""
    plain = record(*JOBS[job])
    found: list[Pair] = []
    for name in names:
        batch = case_of(plain, job_for(name, None)).facts.loader_batch_size
        variants = [
            estimate(name, profile, job_for(name, batch))
            for profile in (plain, bare(plain), bare(plain, readable=False))
        ]
        told, without, unread = (() if isinstance(each, NotApplicable) else each for each in variants)
        if not told:
            continue
        assert len(without) == len(told), (job, name, variants[1])
        assert len(unread) == len(told), (job, name, variants[2])
        for a, b, c in list(zip(told, without, unread, strict=True))[:at_most]:
            seen = record(*JOBS[job], a.settings, RANKS.get(name, 1))
            verified = case_of(seen, job_for(name, batch)).timeline.replay().peak_allocated_bytes
            found.append(Pair(job=job, setting=a.settings[0], told=a, bare=b, unread=c, verified=verified))
    return found
