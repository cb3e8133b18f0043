"""Blocks that more than one stream uses: after the program frees them they wait until the other streams are done."""

from collections import deque
from collections.abc import Iterator

from .blocks import PENDING, Block


class CrossStreamUses:
    """Who uses what, and what waits for whom. Finished work is in the order in which PyTorch looks for it."""

    __slots__ = ("_deferred", "_queues", "_uses", "_waits")

    def __init__(self) -> None:
        self._uses: dict[Block, set[int]] = {}  # allocated block -> other streams that use it
        self._waits: dict[Block, int] = {}  # freed block -> streams it still waits for
        self._queues: dict[int, deque[Block]] = {}  # stream -> blocks waiting for it, oldest first
        self._deferred: list[tuple[Block, set[int]]] = []  # freed during a capture, when no event may be recorded

    def __bool__(self) -> bool:
        """Whether any freed block waits."""
        return bool(self._queues or self._deferred)

    def record(self, block: Block, stream: int) -> None:
        """`stream`, not the block's own, uses it."""
        self._uses.setdefault(block, set()).add(stream)

    def hold(self, block: Block, capturing: bool) -> bool:
        """The program freed the block: whether it has to wait for other streams."""
        if not self._uses or block not in self._uses:
            return False
        self.wait(block, self._uses.pop(block), capturing)
        return True

    def wait(self, block: Block, streams: set[int], capturing: bool = False) -> None:
        block.state = PENDING
        if capturing:
            self._deferred.append((block, streams))
            return
        self._waits[block] = len(streams)
        for stream in sorted(streams):
            self._queues.setdefault(stream, deque()).append(block)

    def finish_all(self) -> Iterator[Block]:
        """All work so far is done: the blocks that nothing uses any more."""
        deferred, self._deferred = self._deferred, []
        for block, streams in deferred:
            self.wait(block, streams)
        for stream in list(self._queues):
            for block in self._queues.pop(stream):
                self._waits[block] -= 1
                if self._waits[block] == 0:
                    del self._waits[block]
                    yield block

    def finish(self, block: Block) -> None:
        """All work that uses this block is done."""
        self._waits.pop(block, None)
        self._deferred = [(each, streams) for each, streams in self._deferred if each is not block]
        for stream in list(self._queues):
            others = deque(each for each in self._queues[stream] if each is not block)
            self._queues[stream] = others
            if not others:
                del self._queues[stream]
