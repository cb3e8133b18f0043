"""From snapshots to the one record that causes, planner and reports read.

The moment looked at is the out-of-memory event that the job failed with where there is one, else the peak of requested
bytes. An out-of-memory error that the script caught and went on from is no failure.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..allocator.fragmentation import fit
from ..allocator.rewind import pool_at
from ..snapshots.columns import empty_trace
from ..snapshots.model import Action, BlockState, DeviceRecording, DeviceSnapshot, Recording, Snapshot, Trace
from ..snapshots.timeline import Extent, extent, live_bytes, reserved_bytes
from .attribution.attribute import Attributed, attribute
from .attribution.facts import Facts, gather
from .attribution.phases import OPTIMIZER
from .attribution.steps import (
    Boundaries,
    find_boundaries,
    mark_at,
    phase_name,
    recorded_boundaries,
    step_at,
    step_bytes,
)
from .block_sizes import BlockSizes, block_sizes
from .call_sites import Lines, group
from .heap import config_of, heap
from .interface import (
    Cached,
    Category,
    CategoryBytes,
    Caught,
    Confidence,
    DeviceProfile,
    LiveBlock,
    MemoryProfile,
    Oom,
    Peak,
)
from .passing import passing

# A category whose bytes were recorded but for so small a share counts as recorded: a loss scalar between two phases.
NEGLIGIBLE = 0.001


def build(snapshots: Sequence[Snapshot], ranks: Sequence[int] | None = None) -> MemoryProfile:
    """One profile per device that holds memory or has events.

    A recording knows its rank; else `ranks` (one per snapshot) tells it, or the order.
    """
    devices: list[DeviceProfile] = []
    for index, snapshot in enumerate(snapshots):
        rank = snapshot.recording.rank if snapshot.recording else index if ranks is None else ranks[index]
        used = (device for device in snapshot.devices if len(device.trace) or len(device.segments))
        devices += [profile_device(snapshot, device, rank) for device in used]
    return MemoryProfile(devices=tuple(sorted(devices, key=lambda each: (each.rank, each.device))))


def profile_device(snapshot: Snapshot, device: DeviceSnapshot, rank: int = 0) -> DeviceProfile:
    """The profile of one device of one snapshot."""
    whole = extent(device)
    if not whole.consistent:
        device, whole = _state_only(device)
    facts = gather(snapshot, device)
    recording = snapshot.recording
    recorded = recording.devices.get(device.device) if recording else None
    ooms = np.flatnonzero(device.trace.action == Action.OOM)
    boundaries = _boundaries(facts, device, snapshot, recorded, bool(len(ooms)))
    failed = bool(len(ooms)) and _failed(recording, int(ooms[-1]), facts, boundaries)
    if len(ooms) and not failed:
        boundaries = _boundaries(facts, device, snapshot, recorded, False)
    sizes = block_sizes(device, snapshot, facts)
    live, reserved = live_bytes(device), reserved_bytes(device)
    moment = int(ooms[-1]) if failed else whole.peak_event
    lines = Lines(snapshot)
    found = attribute(snapshot, device, moment, facts)
    blocks = _live_blocks(snapshot, facts, found, sizes, recorded)
    oom = _oom(device, moment, blocks, reserved, lines, recorded, facts, boundaries) if failed else None
    return DeviceProfile(
        rank=rank,
        device=device.device,
        capacity_bytes=recording.capacity_bytes if recording else None,
        outside_bytes=_outside(recording, oom),
        start_bytes=whole.start,
        final_bytes=whole.final,
        peak=_peak(whole, sizes, recorded, facts, boundaries),
        oom=oom,
        cached=_cached(snapshot, device, moment, blocks, oom),
        categories=_categories(blocks),
        live=blocks,
        call_sites=group(blocks, lines),
        steps=step_bytes(boundaries, live, _first_step(recorded)),
        snapshot=snapshot,
        device_snapshot=device,
        recording=recorded,
        problems=(*snapshot.problems, *sizes.problems),
        caught=None if failed or not len(ooms) else _caught(device.trace, int(ooms[-1]), live),
        block_sizes_exact=sizes.exact,
    )


def _failed(recording: Recording | None, last_oom: int, facts: Facts, boundaries: Boundaries) -> bool:
    """Whether the job failed with its last out-of-memory event.

    Our recordings know how the script ended. Otherwise it went on where a later step came to its optimizer; frees, or
    a gradient reset, are also what an error handler does before it gives up.
    """
    told = recording.facts.get("out_of_memory") if recording else None
    if isinstance(told, bool):
        return told
    if boundaries.source == "recorded":
        return all(event < last_oom for event in boundaries.events)
    steps = facts.phases.phase == OPTIMIZER
    return not bool((facts.phases.run_start[steps] > last_oom).any())


def _caught(trace: Trace, last_oom: int, live: NDArray[np.int64]) -> Caught:
    """The peak from the first allocation after the last of them on: what came before it cleared the attempt away."""
    allocs = np.flatnonzero(trace.action[last_oom:] == Action.ALLOC)
    first = last_oom + int(allocs[0]) if len(allocs) else len(trace) - 1
    return Caught(
        count=int((trace.action == Action.OOM).sum()),
        peak_after_bytes=int(live[first + 1 :].max()),
    )


def _state_only(device: DeviceSnapshot) -> tuple[DeviceSnapshot, Extent]:
    """A trace that contradicts the segments tells nothing: keep the state at the dump (the reader has said so)."""
    bare = DeviceSnapshot(
        device=device.device,
        trace=empty_trace(),
        segments=device.segments,
        blocks=device.blocks,
        pools=device.pools,
    )
    return bare, extent(bare)


def _boundaries(
    facts: Facts,
    device: DeviceSnapshot,
    snapshot: Snapshot,
    recorded: DeviceRecording | None,
    out_of_memory: bool,
) -> Boundaries:
    if not facts.events:
        return Boundaries((), "none found")
    if recorded is not None and recorded.marks:
        found = recorded_boundaries(recorded.marks, facts.events - 1, out_of_memory)
        if found.events:
            return found  # else an evaluation: no optimizer ends a step
    return find_boundaries(facts, device.trace, snapshot.annotations)


def _first_step(recorded: DeviceRecording | None) -> int:
    if recorded is None:
        return 1
    return next((mark.step for mark in recorded.marks if mark.step > 0), 1)


def _live_blocks(
    snapshot: Snapshot, facts: Facts, found: Sequence[Attributed], sizes: BlockSizes, recorded: DeviceRecording | None
) -> tuple[LiveBlock, ...]:
    lives = facts.lives
    dropped = passing(facts, [each.row for each in found if each.category is Category.ACTIVATION], _serves(snapshot))
    blocks = [
        LiveBlock(
            address=int(lives.address[each.row]),
            requested_bytes=int(facts.requested[each.row]),
            block_bytes=int(sizes.bytes[each.row]),
            birth=int(lives.birth[each.row]),
            death=int(lives.death[each.row]),
            category=each.category,
            confidence=each.confidence,
            reason=each.reason,
            share=each.share,
            stack=int(lives.alloc_stack[each.row]),
            module=each.module,
            birth_phase=_birth_phase(facts, each.row, recorded),
            signs=int(facts.signs[each.row]),
            passing=each.row in dropped,
        )
        for each in found
    ]
    return tuple(sorted(blocks, key=lambda block: (-block.requested_bytes, block.address)))


def _serves(snapshot: Snapshot) -> bool | None:
    """Whether the recorded job trains nothing; None without a recording."""
    if snapshot.recording is None:
        return None
    facts = snapshot.recording.facts
    return not facts.get("optimizers") and facts.get("training_mode") is not True


def _birth_phase(facts: Facts, row: int, recorded: DeviceRecording | None) -> str | None:
    birth = int(facts.lives.birth[row])
    if birth < 0:
        return None
    if recorded is not None and recorded.marks:
        mark = mark_at(recorded.marks, birth)
        return mark.phase if mark else None
    return phase_name(facts, birth)


def _categories(blocks: Sequence[LiveBlock]) -> dict[Category, CategoryBytes]:
    sums: dict[Category, int] = {}
    recorded: dict[Category, int] = {}
    for block in blocks:
        sums[block.category] = sums.get(block.category, 0) + block.requested_bytes
        if block.confidence is Confidence.EXACT:
            recorded[block.category] = recorded.get(block.category, 0) + block.requested_bytes
    ordered = sorted(sums, key=lambda category: -sums[category])
    return {
        category: CategoryBytes(
            bytes=sums[category], confidence=_confidence(category, sums[category], recorded.get(category, 0))
        )
        for category in ordered
    }


def _confidence(category: Category, total: int, recorded: int) -> Confidence:
    if category is Category.UNKNOWN:
        return Confidence.UNKNOWN
    return Confidence.EXACT if total - recorded <= NEGLIGIBLE * total else Confidence.INFERRED


def _peak(
    whole: Extent, sizes: BlockSizes, recorded: DeviceRecording | None, facts: Facts, boundaries: Boundaries
) -> Peak:
    step, phase = _when(whole.peak_event, recorded, facts, boundaries)
    return Peak(
        requested_bytes=whole.peak,
        allocated_bytes=sizes.peak_allocated,
        reserved_bytes=whole.reserved_peak,
        event=whole.peak_event,
        step=step,
        phase=phase,
    )


def _when(
    event: int, recorded: DeviceRecording | None, facts: Facts, boundaries: Boundaries
) -> tuple[int | None, str | None]:
    """Step and phase at an event; None where they are not known."""
    if recorded is not None and recorded.marks:
        mark = mark_at(recorded.marks, event)
        if mark is None:
            return None, None
        counted = step_at(boundaries, event, _first_step(recorded)) if mark.step > 0 else None
        return (mark.step if counted is None else counted), mark.phase
    return step_at(boundaries, event), phase_name(facts, event)


def _oom(
    device: DeviceSnapshot,
    event: int,
    blocks: Sequence[LiveBlock],
    reserved: NDArray[np.int64],
    lines: Lines,
    recorded: DeviceRecording | None,
    facts: Facts,
    boundaries: Boundaries,
) -> Oom:
    trace = device.trace
    step, phase = _when(event, recorded, facts, boundaries)
    return Oom(
        event=event,
        requested_bytes=int(trace.size[event]),
        device_free_bytes=trace.oom_device_free.get(event),
        allocated_bytes=sum(block.block_bytes for block in blocks),
        reserved_bytes=int(reserved[event + 1]),
        location=lines.of(int(trace.stack[event])),
        step=step,
        phase=phase,
        signs=facts.stack_signs.at(int(trace.stack[event])),
    )


def _outside(recording: Recording | None, oom: Oom | None) -> int | None:
    """Bytes of the card that are not the allocator's: recorded, or by subtraction at the failure."""
    if recording is None:
        return None
    if recording.outside_bytes is not None:
        return recording.outside_bytes
    if recording.capacity_bytes is None or oom is None or oom.device_free_bytes is None:
        return None
    return max(0, recording.capacity_bytes - oom.reserved_bytes - oom.device_free_bytes)


def _cached(
    snapshot: Snapshot, device: DeviceSnapshot, event: int, blocks: Sequence[LiveBlock], oom: Oom | None
) -> Cached | None:
    """Reserved, not allocated, and whether the request that failed (else the largest one) would find room in it."""
    segments = heap(snapshot, device, event, blocks)
    if not segments:
        return None
    trace = device.trace
    allocs = np.flatnonzero(trace.action == Action.ALLOC)
    if oom is None and not len(allocs):
        free = [each.size for segment in segments for each in segment.blocks if each.state is BlockState.INACTIVE]
        return Cached(
            bytes=sum(free), fragmented_bytes=0, largest_free_block_bytes=max(free, default=0), for_request_bytes=None
        )
    request = oom.event if oom is not None else int(allocs[int(trace.size[allocs].argmax())])
    config, size, stream = config_of(snapshot), int(trace.size[request]), int(trace.stream[request])
    found = fit(segments, config, size, stream, pool_at(device, request))
    return Cached(
        bytes=found.free,
        fragmented_bytes=found.fragmented,
        largest_free_block_bytes=found.largest_free_block,
        for_request_bytes=found.request,
    )
