"""oomdoc: diagnose GPU out-of-memory in PyTorch jobs and prescribe the change that fixes it.

    oomdoc.load("snapshot.pickle")           the snapshots of a file or a run directory
    oomdoc.analyze("snapshot.pickle")        what holds the memory, by cause and by line
    oomdoc.plan("snapshot.pickle")           the same, with the changes that would make it fit
    with oomdoc.record(gpu="a100-40gb"): ..  record a block on the virtual GPU, or on a real one
    oomdoc.TransformersCallback(), oomdoc.LightningCallback()

Importing this imports nothing else: neither torch nor numpy, until something is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.analysis import Analysis as Analysis
    from .api.analysis import analyze as analyze
    from .api.analysis import load as load
    from .api.analysis import plan as plan
    from .api.lightning_callback import LightningCallback as LightningCallback
    from .api.recording import Recording as Recording
    from .api.recording import record as record
    from .api.transformers_callback import TransformersCallback as TransformersCallback
    from .errors import OomdocError as OomdocError
    from .errors import UnreadableInputError as UnreadableInputError

__version__ = "0.1.0"

_HOMES = {
    "Analysis": "api.analysis",
    "LightningCallback": "api.lightning_callback",
    "OomdocError": "errors",
    "Recording": "api.recording",
    "TransformersCallback": "api.transformers_callback",
    "UnreadableInputError": "errors",
    "analyze": "api.analysis",
    "load": "api.analysis",
    "plan": "api.analysis",
    "record": "api.recording",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
