"""`oomdoc.TransformersCallback()`: for the Trainer of Hugging Face transformers, and TRL's, which are such."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from .recording import Recording
from .training import TrainingRecorder


class TransformersCallback(TrainerCallback):
    """Records the first `steps` optimizer steps on a real GPU and adds `gpu_peak_gib` to what the trainer logs.

        trainer = Trainer(..., callbacks=[oomdoc.TransformersCallback(save="memory.pickle")])

    Then `oomdoc analyze memory.pickle`.
    """

    def __init__(self, save: str | Path = "oomdoc-snapshot.pickle", steps: int = 4) -> None:
        self._recorder = TrainingRecorder(save, steps)

    @property
    def recording(self) -> Recording | None:
        """None until training has begun, and where an enclosing `oomdoc.record()` has it."""
        return self._recorder.recording

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recorder.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recorder.step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        peak = self._recorder.peak()
        for told in (logs, state.log_history[-1] if state.log_history else None):
            if isinstance(told, dict):
                told.update(peak)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recorder.end()
