"""Plain values: what may stand in a snapshot beside columns (JSON's types), and nothing else."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

MAX_DEPTH = 12


def plain(value: object, depth: int = 0) -> Any:
    """`value` as dicts with string keys, lists, strings, numbers, booleans and None; numpy scalars are converted.

    Raises TypeError for anything else, ValueError when nested more than MAX_DEPTH deep.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, depth + 1) for each in value]
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} is not a plain value")


def plain_mapping(raw: object) -> dict[str, object]:
    """A dict from a file, as plain values; empty where it is none."""
    try:
        return dict(plain(raw)) if isinstance(raw, dict) else {}
    except (TypeError, ValueError):
        return {}
