"""Where text goes: the report to stdout or a file, everything else to stderr."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..errors import OomdocError
from .format import Format

if TYPE_CHECKING:
    from ..reports.model import GateRun, Report

FILE_WIDTH = 100


def emit(report: "Report", form: Format, output: Path | None) -> None:
    """Draws the report and writes it to stdout, or to `output`."""
    _deliver(render(report, form, _stream(output)), output)
    if form is Format.GITHUB:
        from ..reports import markdown

        _step_summary(markdown.render(report))


def emit_gate(run: "GateRun", form: Format, output: Path | None) -> None:
    """The same for a gate."""
    from ..reports import gate_markdown, gate_terminal, gate_text
    from ..reports.all_formats import GATE_RENDERERS

    stream = _stream(output)
    if form is Format.TERMINAL:
        text = gate_terminal.render(
            run, width=width(stream), color=colors(stream), ascii_only=not has_utf8(stream), full=Talk.verbose
        )
    else:
        text = GATE_RENDERERS[form.value](run)
    if output is not None:  # the log of a CI job still says it
        for line in gate_text.lines(run):
            say(line)
    _deliver(text, output)
    if form is Format.GITHUB:
        _step_summary(gate_markdown.render(run))


def _stream(output: Path | None) -> TextIO | None:
    return sys.stdout if output is None else None


def _deliver(content: str | bytes, output: Path | None) -> None:
    if output is not None:
        write_file(output, content)
        note(f"wrote {output}")
        return
    if isinstance(content, bytes) and sys.stdout.isatty():
        raise OomdocError("this format is not text: give --output FILE, or send stdout to a file or a pipe")
    put(content)


def _step_summary(text: str) -> None:
    """GitHub shows what a step appends to this file on the page of the run."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            say(f"cannot write the step summary {path}: {error.strerror}")


def render(report: "Report", form: Format, stream: TextIO | None) -> str | bytes:
    """`stream` is the terminal that will show it, None for a file."""
    if form is Format.TERMINAL:
        from ..reports import terminal

        return terminal.render(
            report, width=width(stream), color=colors(stream), ascii_only=not has_utf8(stream), full=Talk.verbose
        )
    from ..reports.all_formats import RENDERERS

    return RENDERERS[form.value](report)


def put(content: str | bytes) -> None:
    """To stdout; a reader that has gone away (`| head`) is no error."""
    try:
        if isinstance(content, bytes):
            sys.stdout.buffer.write(content)
        else:
            encoding = sys.stdout.encoding or "utf-8"  # a file name can hold what no encoding has: half a character
            sys.stdout.write(content.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end: give it something that takes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Talk:
    """How much is said: --quiet leaves out notes and progress, --verbose the limits of a report's tables."""

    quiet = False
    verbose = False


def note(text: str) -> None:
    """A line to stderr that nobody has to read: not with --quiet."""
    if not Talk.quiet:
        say(text)


def say(text: str) -> None:
    """A line to stderr that tells of something wrong, or of a choice that decides the result."""
    sys.stderr.write(f"oomdoc: {text}\n")
    sys.stderr.flush()


def checked_output(path: Path | None) -> Path | None:
    """Before anything runs: a folder that is not there is more likely a typing error than a wish."""
    if path is None:
        return None
    if not path.parent.is_dir():
        raise OomdocError(f"cannot write {path}: there is no directory {path.parent}")
    if path.is_dir():
        raise OomdocError(f"cannot write {path}: it is a directory")
    return path


def write_file(path: Path, content: str | bytes) -> None:
    checked_output(path)
    try:
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    except OSError as error:
        raise OomdocError(f"cannot write {path}: {error.strerror}") from error


def width(stream: TextIO | None) -> int:
    """Columns of the terminal; COLUMNS wins, as everywhere; 100 in a file, 80 in a pipe."""
    if stream is None:
        return FILE_WIDTH
    return shutil.get_terminal_size((80, 24)).columns


def colors(stream: TextIO | None) -> str | None:
    """The colours of a terminal that is not told otherwise by NO_COLOR or TERM=dumb; FORCE_COLOR colours a pipe too."""
    if stream is None or os.environ.get("NO_COLOR"):
        return None
    if not os.environ.get("FORCE_COLOR") and (not stream.isatty() or os.environ.get("TERM") == "dumb"):
        return None
    return "truecolor" if os.environ.get("COLORTERM") in ("truecolor", "24bit") else "256"


def has_utf8(stream: TextIO | None) -> bool:
    encoding = "utf-8" if stream is None else (stream.encoding or "ascii")
    return encoding.lower().replace("-", "") in ("utf8", "utf8sig")


@contextlib.contextmanager
def script_output(form: Format, output: Path | None) -> Iterator[None]:
    """While a script runs: its stdout goes to stderr when stdout is to carry a report for a machine."""
    if form is Format.TERMINAL or output is not None:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def muted(log: Path | None) -> Iterator[TextIO]:
    """While this lasts, children write to `log`. Gives the stream to talk to people meanwhile."""
    if log is None:
        yield sys.stderr
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        with open(kept[1], "w", encoding=sys.stderr.encoding, closefd=False) as stream:
            yield stream
    finally:
        for number, saved in enumerate(kept, 1):
            os.dup2(saved, number)
            os.close(saved)
