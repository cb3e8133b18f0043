"""Small files whole or not at all, copies under a URL, and a line on stderr. torch is not imported here."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_text(path: Path, text: str) -> bool:
    """Whole or not at all; False and a line on stderr where it cannot be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        say(f"{path} was not written: {error.strerror or error}{stands(path)}")
        return False
    return True


def upload(url: str | None, path: Path) -> None:
    """A copy beside the others, under the URL of the run; local files stay where they are."""
    if url is None:
        return
    try:
        import fsspec  # comes with torch; the client of a storage is the user's to install

        files, root = fsspec.core.url_to_fs(url)
        files.makedirs(root, exist_ok=True)
        files.put(str(path), f"{root.rstrip('/')}/{path.name}")
    except Exception as error:  # whatever the storage's own client raises: the script must not fail of it
        say(f"{path.name} was not copied to {url}: {type(error).__name__}: {error}; it is in {path.parent}")


def stands(path: Path) -> str:
    return "; the file of before stands" if path.exists() else ""


def say(text: str) -> None:
    print(f"oomdoc: {text}", file=sys.stderr, flush=True)  # noqa: T201  (the rank's own stderr)


@contextmanager
def faults_told() -> Iterator[None]:
    """A fault of oomdoc costs the job that it watches a traceback on stderr, and no more."""
    try:
        yield
    except Exception as fault:
        traceback.print_exc()
        say(f"a fault of oomdoc itself, the script goes on: {type(fault).__name__}: {fault}")
