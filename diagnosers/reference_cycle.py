"""Tensors that nothing reaches any more wait for Python's cycle collector.

What it means
    Objects that keep each other (a module and a hook that captured it, an exception and the frame that caught it) are
    not freed with their last name. The collector frees them some time later: it counts objects, not bytes of a GPU, and
    running out of CUDA memory does not start it.

Evidence used
    At the end of a recording on the virtual GPU a collection is asked what it would free, without freeing it. Its
    tensors are found among the live blocks by address.

Example
    A ResNet-152 is built again and again and never called; a hook's closure captures the module, and the card fills
    with models that no variable names (pytorch issue 46386).

Known limits
    Only `oomdoc run` on the virtual GPU can tell: a snapshot knows blocks, not who holds them. What a collection that
    happens to run frees in time is no failure: where the job fits this is a note.

What the remedies change
    break-cycle: a weak reference in the hook, `handle.remove()`, `del` of the caught exception; or `gc.collect()` once
    between two models (not in each step: it takes milliseconds to seconds).
"""

from collections.abc import Mapping

from .interface import Case, Claim
from .judging import bytes_of, claim, share
from .text import moment, percent, size

CODE = "OOM030"
NAME = "reference-cycle"
REMEDIES = ("break-cycle",)
DECISIVE = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile = case.profile
    recording = profile.snapshot.recording
    told = recording.facts.get("unreachable") if recording else None
    if not isinstance(told, Mapping):
        return None
    addresses = _all(told.get("addresses"), int)
    ends = len(profile.device_snapshot.trace)  # the question was asked at the end: an address may be used again
    blocks = {index: b for index, b in case.live().items() if b.address in addresses and b.death >= ends}
    total = bytes_of(blocks.values())
    part = share(profile, total)
    if total < thresholds["min_bytes"] or part < thresholds["min_share"]:
        return None
    owners = [name for name in _all(told.get("owners"), str) if isinstance(name, str)]
    evidence = ["gc.collect() would free them", *([f"in cycles of {', '.join(owners)}"] if owners else [])]
    title = f"Nothing reaches {size(total)} any more, {percent(part)} of what was live {moment(profile)}"
    return claim(case, blocks, title, thresholds, evidence)


def _all(values: object, kind: type) -> tuple[object, ...]:
    return tuple(each for each in values if isinstance(each, kind)) if isinstance(values, (list, tuple)) else ()
