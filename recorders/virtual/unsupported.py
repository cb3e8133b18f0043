"""An operation whose memory nobody has described: stop with its name, the script's line, and what to do."""

import sys

from ..errors import UnsupportedOperationError
from .stacks import is_machinery


def unsupported(
    operation: str, reason: str, kind: type[UnsupportedOperationError] = UnsupportedOperationError
) -> UnsupportedOperationError:
    """The error to raise. `operation` is the dispatcher's name, such as `mylib::fused_mlp`."""
    file, line = users_line()
    custom = not operation.startswith("aten::")
    hint = (
        f"Teach torch its shapes, torch.library.register_fake({operation!r}, ...), or oomdoc its memory, an entry "
        "point of the group oomdoc.operations (CONTRIBUTING.md); or run on a real GPU (--real)."
        if custom
        else "Run on a real GPU (--real), or replace the operation for this run."
    )
    first = reason.strip().splitlines()[0] if reason.strip() else "no meta kernel"
    return kind(
        operation, f"the virtual GPU does not know what {operation} allocates ({first[:200]})", hint, file, line
    )


def users_line() -> tuple[str, int]:
    """File and line of the innermost frame that is neither torch's nor ours; the innermost of all if there is none."""
    frame = sys._getframe(1)
    innermost: tuple[str, int] = ("", 0)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_machinery(name):
            innermost = innermost if innermost[0] else (name, frame.f_lineno)
            if "/torch/" not in name.replace("\\", "/") and not name.startswith("<frozen"):
                return name, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return innermost


def is_library(filename: str) -> bool:
    """Whether the file was installed, rather than written by whoever runs the script."""
    name = filename.replace("\\", "/")
    return "/site-packages/" in name or "/dist-packages/" in name or name.startswith("<")
