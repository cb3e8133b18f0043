"""The peak, explained as an expert would answer a question about it.

What happened and when; the three largest things and why they are alive; what is usual for a job of this kind; and
what is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .attribution.facts import gather
from .attribution.multisets import MOMENTS
from .interface import Category, DeviceProfile, Diagnosis, Finding, Location, Severity
from .judging import bytes_of, held_by_line
from .survivors import complete_steps
from .text import count, moment, percent, size

LARGEST = 3
# A ratio this near to what is expected is as expected: norms, frozen parts and scalars differ.
NEAR = 0.1
# Of the reserved bytes, at the peaks of 12 public recordings: the median, and what none of them exceeds.
USUAL_HOLES, MOST_HOLES = 0.04, 0.15
_DOMINATES = ("OOM001", "OOM002", "OOM003", "OOM004", "OOM024")  # they say how much, not that it is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One category at the moment looked at, and why it is alive."""

    category: Category
    bytes: int
    share: float
    because: str
    location: Location | None  # the line that made most of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    rank: int
    device: int
    what: str
    when: str
    largest: tuple[Holding, ...]
    normal: tuple[str, ...]
    unusual: tuple[str, ...]


def explain(diagnosis: Diagnosis) -> Explanation | None:
    """Of the device that failed, else the one with most live bytes; None where no memory was recorded."""
    devices = [device for device in diagnosis.profile.devices if device.live]
    if not devices:
        return None
    failed = [device for device in devices if device.oom is not None]
    profile = max(failed or devices, key=lambda each: each.live_bytes)
    mine = [f for f in diagnosis.findings if (f.rank, f.device) == (profile.rank, profile.device)]
    return Explanation(
        rank=profile.rank,
        device=profile.device,
        what=_what(profile),
        when=_when(profile),
        largest=tuple(_holding(profile, each) for each in list(profile.categories)[:LARGEST]),
        normal=tuple(_normal(profile)),
        unusual=tuple(_unusual(profile, mine)),
    )


def _what(profile: DeviceProfile) -> str:
    held = size(profile.live_bytes)
    if profile.oom is None:
        room = "" if profile.capacity_bytes is None else f" on a card of {size(profile.capacity_bytes)}"
        return f"Nothing failed: at most {held} of tensors were alive at once{room}."
    asked = size(profile.oom.requested_bytes)
    free = profile.oom.device_free_bytes
    cached = profile.cached.bytes if profile.cached else 0
    rest = "" if free is None else f", {size(free)} were free on the card"
    return f"{asked} more did not fit beside {held} of tensors{rest}, and {size(cached)} lay in the allocator's cache."


def _when(profile: DeviceProfile) -> str:
    done = complete_steps(profile)
    before = "before any step was complete" if not done else f"after {count(done, 'complete step')}"
    told = moment(profile)
    return f"{told[:1].upper()}{told[1:]}, {before}." if profile.steps else f"{told[:1].upper()}{told[1:]}."


_BECAUSE = {
    Category.PARAMETER: "the weights are there for as long as the model is on the card",
    Category.BUFFER: "tables of the model, there for as long as it is",
    Category.GRADIENT: "one per trainable parameter, from its backward until zero_grad",
    Category.OPTIMIZER_STATE: "made in the optimizer's first step and kept for good",
    Category.INPUT: "the batch, for as long as a variable or the graph holds it",
    Category.TEMPORARY: "intermediate results, dropped as soon as the operation or the phase that needs them is over",
    Category.WORKSPACE: "scratch memory of cuBLAS and cuDNN; cuBLAS keeps its own",
    Category.COMMUNICATION: "gathered parameters and buckets, until the collective and its consumer are done",
    Category.AUTOCAST_CACHE: "half-precision copies of weights, until autocast is left and no graph holds them",
    Category.KV_CACHE: "keys and values of all tokens so far, for as long as the sequences run",
    Category.UNKNOWN: "not told by what was recorded",
}


def _holding(profile: DeviceProfile, category: Category) -> Holding:
    blocks = [block for block in profile.live if block.category is category]
    held = held_by_line(profile, blocks)
    return Holding(
        category=category,
        bytes=bytes_of(blocks),
        share=bytes_of(blocks) / profile.live_bytes,
        because=_BECAUSE.get(category) or _why_activations(profile),
        location=next((row.location for row in held if row.location is not None), None),
    )


def _why_activations(profile: DeviceProfile) -> str:
    phase = (profile.oom or profile.peak).phase
    if phase == "backward":
        return "saved by forward for this backward, which drops them from the last layer to the first"
    if phase == "forward":
        return "results of this forward, which a backward will need unless gradients are off"
    return "results of a forward that something still holds: a graph, or a variable"


def _normal(profile: DeviceProfile) -> list[str]:
    """What a job with these parameters holds anyway."""
    told = []
    parameters = _parameters(profile)
    trainable = parameters.get("trainable_bytes")
    sizes = {c: profile.bytes_of(c) for c in (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)}
    number = parameters.get("count")
    if isinstance(number, int) and number and not parameters.get("sharded"):
        each = " + ".join(f"{sizes[c] / number:.1f} {c.value.replace('_', ' ')}" for c in sizes if sizes[c])
        told.append(f"{each} bytes per parameter, for {number:,} parameters{_usual(profile)}")
    if isinstance(trainable, int) and trainable and abs(sizes[Category.GRADIENT] - trainable) <= NEAR * trainable:
        told.append("one gradient per trainable parameter is alive")
    kept, weights = _moments(profile), sizes[Category.PARAMETER]
    if not told and kept and weights and abs(sizes[Category.OPTIMIZER_STATE] / weights - kept[1]) <= NEAR * kept[1]:
        told.append(f"{kept[1]} bytes of optimizer state per byte of weights, as {kept[0]} keeps")
    cached = profile.cached
    reserved = profile.live_bytes + cached.bytes if cached else 0
    if cached and reserved and cached.fragmented_bytes < MOST_HOLES * reserved:
        holes = percent(cached.fragmented_bytes / reserved)
        told.append(f"{holes} of the reserved memory is in holes; {percent(USUAL_HOLES)} is usual")
    return told


def _usual(profile: DeviceProfile) -> str:
    """What the optimizer at work makes of each parameter in the end."""
    kept = _moments(profile)
    width = _width(profile)
    if kept is None or width is None:
        return ""
    name, moments = kept
    return f"; {name} in this precision comes to {width} + {width} + {width * moments} = {width * (2 + moments)}"


def _moments(profile: DeviceProfile) -> tuple[str, int] | None:
    """An optimizer at work and how many tensors it keeps for each parameter; SGD may keep one or none."""
    recording = profile.snapshot.recording
    optimizers = recording.facts.get("optimizers") if recording else None
    names = [each.get("class") for each in optimizers] if isinstance(optimizers, (list, tuple)) else []
    if recording is None:
        names = sorted(gather(profile.snapshot, profile.device_snapshot).optimizers, reverse=True)
    known = [name for name in names if isinstance(name, str) and name.lower() in MOMENTS and name.lower() != "sgd"]
    return (known[0], MOMENTS[known[0].lower()]) if known else None


def _width(profile: DeviceProfile) -> int | None:
    """Bytes of a number, where all parameters have one type."""
    known = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
    types = _parameters(profile).get("bytes_of_dtype")
    return known.get(next(iter(types))) if isinstance(types, Mapping) and len(types) == 1 else None


def _unusual(profile: DeviceProfile, findings: list[Finding]) -> list[str]:
    told = [f.title for f in findings if f.severity is not Severity.NOTE and f.code not in _DOMINATES]
    parameters = _parameters(profile)
    trainable = parameters.get("trainable_bytes")
    kept = _moments(profile)
    state = profile.bytes_of(Category.OPTIMIZER_STATE)
    if kept and isinstance(trainable, int) and trainable and not parameters.get("sharded"):
        usual = kept[1] * trainable
        if state > (1 + NEAR) * usual:
            told.append(f"{kept[0]} keeps {state / trainable:.1f} bytes per byte of weights; {kept[1]} are usual")
        elif profile.oom is not None and state < (1 - NEAR) * usual:
            told.append(f"the optimizer's state is not whole yet: {size(usual - state)} more come with the first step")
    return told


def _parameters(profile: DeviceProfile) -> Mapping[str, object]:
    recording = profile.snapshot.recording
    found = recording.facts.get("parameters") if recording else None
    return found if isinstance(found, Mapping) else {}
