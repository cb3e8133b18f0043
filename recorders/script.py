"""Runs a script as `python script.py args` (or `python -m module args`) would, in this process."""

import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, TracebackType

from ..errors import OomdocError


def execute(script: str, args: Sequence[str], *, module: bool) -> None:
    """Everything the script raises comes out, SystemExit too. `__main__`, sys.argv and sys.path[0] are the script's."""
    if module:
        _run_module(script, args)
    else:
        _run_file(script, args)


def _run_file(script: str, args: Sequence[str]) -> None:
    path = Path(script)
    if not path.is_file():
        raise OomdocError(f"there is no script {script}")
    with io.open_code(str(path.resolve())) as file:
        source = file.read()
    name = os.path.join(os.getcwd(), script)  # as Python names it, in tracebacks too: whole, and not normalised
    main = types.ModuleType("__main__")
    main.__file__ = name
    main.__cached__ = None  # type: ignore[attr-defined]
    main.__annotations__ = {}
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    main.__spec__ = None  # as for a script: multiprocessing's spawn finds it by its file
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", name)
    sys.argv = [script, *args]
    sys.path[0] = str(path.resolve().parent)
    sys.modules["__main__"] = main
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str, args: Sequence[str]) -> None:
    sys.path[0] = os.getcwd()
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise OomdocError(f"there is no module {name} on sys.path")
    sys.argv = [name, *args]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


LAUNCHER_FILE = execute.__code__.co_filename
LAUNCHER_CODES: frozenset[CodeType] = frozenset(each.__code__ for each in (execute, _run_file, _run_module))


def user_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own first frame on, without the frames of a recorder; relinked in place."""
    found = traceback
    while found is not None and found.tb_frame.f_code not in LAUNCHER_CODES:
        found = found.tb_next
    while found is not None and (found.tb_frame.f_code in LAUNCHER_CODES or _is_runpy(found.tb_frame.f_code)):
        found = found.tb_next
    if found is None:
        return traceback
    last = found
    while last.tb_next is not None:
        if is_recorder(last.tb_next.tb_frame.f_code.co_filename):
            last.tb_next = last.tb_next.tb_next
        else:
            last = last.tb_next
    return found


def is_recorder(filename: str) -> bool:
    """True for files of this room, and for those that apply remedies to the script."""
    return filename.startswith(_OWN)


_PACKAGES = (Path(__file__).parents[1], Path(__file__).resolve().parents[1])
_OWN = tuple(f"{root / room}{os.sep}" for root in _PACKAGES for room in ("recorders", Path("remedies", "runtime")))


def _is_runpy(code: CodeType) -> bool:
    return code.co_filename.endswith("runpy.py") or code.co_filename == "<frozen runpy>"
