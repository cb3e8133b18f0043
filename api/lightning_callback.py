"""`oomdoc.LightningCallback()`: for the Trainer of Lightning, as `lightning` or as `pytorch_lightning`."""

from pathlib import Path
from typing import Any

from .recording import Recording
from .training import TrainingRecorder

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback


class LightningCallback(Callback):  # type: ignore[misc]  # not typed throughout
    """Records the first `steps` optimizer steps on a real GPU and logs `gpu_peak_gib`.

        trainer = Trainer(..., callbacks=[oomdoc.LightningCallback(save="memory.pickle")])

    Then `oomdoc analyze memory.pickle`.
    """

    def __init__(self, save: str | Path = "oomdoc-snapshot.pickle", steps: int = 4) -> None:
        self._recorder = TrainingRecorder(save, steps)
        self._seen = 0

    @property
    def recording(self) -> Recording | None:
        """None until training has begun, and where an enclosing `oomdoc.record()` has it."""
        return self._recorder.recording

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._recorder.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.global_step > self._seen:  # optimizer steps, not batches
            self._seen = trainer.global_step
            self._recorder.step()
        pl_module.log_dict(self._recorder.peak())

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._recorder.end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._recorder.end()
