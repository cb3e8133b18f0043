"""Set a key of a TOML file with tomlkit, which keeps comments, order, blank lines and line ends."""

from collections.abc import Mapping
from typing import Any

from ...errors import OomdocError


def parse(text: str) -> dict[str, Any]:
    """Plain values. Raises ValueError (tomlkit's ParseError, with its line, is one)."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        content: dict[str, Any] = tomlkit.parse(text.lstrip("\ufeff")).unwrap()
    except TOMLKitError as error:
        raise ValueError(str(error)) from error
    return content


def set_value(text: str, path: tuple[str, ...], value: Any) -> str:
    """The new text; a table that is not there is put at the end."""
    import tomlkit

    mark = "\ufeff" if text.startswith("\ufeff") else ""
    document = tomlkit.parse(text.removeprefix(mark))
    at: Any = document
    for key in path[:-1]:
        if key not in at:
            if text.strip() and at is document:
                at.add(tomlkit.nl())
            at[key] = tomlkit.table()
        at = at[key]
        if not isinstance(at, Mapping):
            raise OomdocError(f"{key} in the file is no table: change it by hand.")
    _set(at, path[-1], value)
    new: str = tomlkit.dumps(document)
    if "\r\n" in text:
        new = new.replace("\r\n", "\n").replace("\n", "\r\n")
    return mark + new


def _set(table: Any, key: str, value: Any) -> None:
    """Behind the table's last key: tomlkit's own place is behind the comments that announce the next table."""
    from tomlkit.items import AoT, Table

    if key in table or not isinstance(table, Table):
        table[key] = value
        return
    container = table.value
    keys = [k for k, item in container.body if k is not None and not isinstance(item, (AoT, Table))]
    if keys:
        # tried with tomlkit 0.13 to 0.15; there is no public name for it
        container._insert_after(keys[-1], key, value)
    elif not container.body:
        table[key] = value
    else:
        container._insert_at(0, key, value)
