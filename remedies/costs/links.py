"""The bandwidths of configs/links.yaml."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ...configs.loader import GpuSpec, gpu
from ...errors import OomdocError

_FILE = Path(__file__).resolve().parent.parent.parent / "configs" / "links.yaml"


@lru_cache(maxsize=1)
def table() -> Mapping[str, Any]:
    """links.yaml as it is."""
    content = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return dict(content)


def card(name: str | None) -> GpuSpec | None:
    """The card of that name, None where it is not in gpus.yaml (a driver's own name, no name)."""
    if name is None:
        return None
    try:
        return gpu(name)
    except OomdocError:
        return None


def host_bandwidth(name: str | None) -> float:
    """Bytes/s between pinned host memory and the card, one direction; PCIe 4 where the card is not known."""
    spec = card(name)
    generation = spec.pcie_generation if spec is not None else 4
    host = table()["host"]
    return float(host.get(f"pcie{generation}", host["pcie4"])["bytes_per_second"])


def pageable_share() -> float:
    return float(table()["pageable_share"])
