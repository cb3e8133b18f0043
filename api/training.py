"""What the callbacks of all trainers do: record the first steps of a training, keep its peak, say where the file is."""

import atexit
import logging
from contextlib import AbstractContextManager
from pathlib import Path

from .recording import Recording, record

LOG = logging.getLogger("oomdoc")


class TrainingRecorder:
    """On a real GPU it records `steps` optimizer steps and writes the snapshot to `save`, at the latest when the
    process ends: an out-of-memory is in it. Within `oomdoc.record()` that block has the recording.
    """

    def __init__(self, save: str | Path, steps: int) -> None:
        self.save, self.steps = Path(save), steps
        self.recording: Recording | None = None
        self.done = 0
        self._block: AbstractContextManager[Recording] | None = None

    def begin(self) -> None:
        from ..recorders.inprocess import highest_allocated, is_recording

        if is_recording():
            return
        if highest_allocated() is None:
            LOG.warning(
                "there is no GPU whose memory could be recorded: put `with oomdoc.record():` around the making of the "
                "trainer and its training, or run the script with `oomdoc run`"
            )
            return
        self._block = record(virtual=False, save=self.save)
        self.recording = self._block.__enter__()
        atexit.register(self.end)

    def step(self) -> None:
        """An optimizer step is done."""
        self.done += 1
        if self.done >= self.steps:
            self.end()

    def end(self) -> None:
        """Stops the recording, if one runs."""
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)
            atexit.unregister(self.end)
            LOG.warning("GPU memory of %d steps is in %s: oomdoc analyze %s", self.done, self.save, self.save)

    def peak(self) -> dict[str, float]:
        """For a trainer's log: `gpu_peak_gib`, of allocated bytes; empty without a GPU."""
        from ..recorders.inprocess import highest_allocated

        peak = highest_allocated()
        return {} if peak is None else {"gpu_peak_gib": round(peak / 2**30, 3)}
