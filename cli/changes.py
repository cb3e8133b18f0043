"""What changed in the code since the baseline was committed, as git tells it; nothing where there is no history."""

import re
import subprocess
from collections.abc import Collection
from pathlib import Path

from ..gates.interface import CodeChange

MOST = 8
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def since(baseline: Path, files: Collection[str]) -> tuple[CodeChange, ...]:
    """Added and changed lines of those of `files` (relative to the current folder) that git knows, blank ones left out.

    The history need not reach back to the baseline's commit (a shallow clone): then there is nothing to tell.
    """
    names = [name for name in sorted(files) if name.endswith(".py") and Path(name).is_file()]
    commit = _git("log", "-1", "--format=%H", "--", str(baseline)).strip()
    if not names or not commit:
        return ()
    text = _git("diff", "--unified=0", "--no-color", "--no-ext-diff", "--relative", commit, "--", *names)
    return tuple(_lines(text))[:MOST]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _lines(diff: str) -> list[CodeChange]:
    found: list[CodeChange] = []
    file, number, left = "", 0, 0
    for line in diff.splitlines():
        hunk = _HUNK.match(line)
        if hunk:
            number, left = int(hunk.group(1)), int(hunk.group(2) or 1)
        elif left and line.startswith("+"):
            code = line[1:].strip()
            if code and not code.startswith("#"):
                found.append(CodeChange(file=file, line=number, code=code[:120]))
            number, left = number + 1, left - 1
        elif line.startswith("+++ "):
            file = line[4:].strip().removeprefix("b/")
    return found
