"""The heap at the moment looked at: the segments of then, cut into the blocks that were live."""

from collections.abc import Iterable

from ..allocator.config import AllocatorConfig, AllocConfError, from_snapshot_settings
from ..allocator.heap import BlockView, SegmentView
from ..allocator.rewind import heap_with
from ..snapshots.model import BlockState, DeviceSnapshot, Snapshot
from .interface import LiveBlock


def config_of(snapshot: Snapshot) -> AllocatorConfig:
    """The allocator settings of the recording; PyTorch's defaults where they cannot be read (`block_sizes` says so)."""
    try:
        return from_snapshot_settings(snapshot.settings)
    except AllocConfError:
        return AllocatorConfig()


def heap(snapshot: Snapshot, device: DeviceSnapshot, event: int, live: Iterable[LiveBlock]) -> tuple[SegmentView, ...]:
    """Just after `event`. A block whose free waits for another stream is in use as any other."""
    blocks = (
        BlockView(each.address, each.block_bytes, each.requested_bytes, BlockState.ACTIVE_ALLOCATED) for each in live
    )
    return heap_with(device, config_of(snapshot), event, blocks)
