"""Which release of a framework a config is for, and what that release lacks."""

import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ...errors import OomdocError


def of(table: Mapping[str, Any], named: str | None) -> str | None:
    """The release that the user names, else the one installed here, else None (the one that the table was tried with).

    Raises OomdocError for one that the table as a whole is not for.
    """
    version = named or _installed(table["package"])
    least, below = table.get("least"), table.get("below")
    if version is None:
        return None
    if not _release(version):
        raise OomdocError(f"{version!r} is no version of {table['package']}, such as {table['tried']}.")
    if (least and _release(version) < _release(least)) or (below and _release(version) >= _release(below)):
        why = f" {table['other_releases']}" if "other_releases" in table else ""
        span = f"from {least}" + (f" to below {below}" if below else "")
        raise OomdocError(
            f"this {table['title']} is for {table['package']} {span}, and {version} is used.{why} "
            "(--framework-version names another.) Nothing was changed."
        )
    return version


def lacks(version: str | None, needed: Any) -> str | None:
    """`needed`, where `version` is known to be older."""
    if needed is None or version is None or _release(version) >= _release(str(needed)):
        return None
    return str(needed)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a release, () where it has none: 5.24.0.dev0 -> (5, 24)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = list(map(int, match.group().split("."))) if match else []
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
