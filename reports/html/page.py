"""The report as one HTML file: nothing is loaded from outside, and the policy in its head forbids it.

What can be read without a script stands in the page as text; the charts are drawn from one block of compressed data.
No string of the snapshot is ever part of a script: they are escaped text of the template, or inside that block.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

import jinja2

from ...diagnosers.interface import DeviceProfile
from ..model import Report
from ..palette import COLORS
from ..text import CATEGORY_TITLES, CONTROLS, device_title
from . import series, view
from .packing import Packer

_ASSETS = Path(__file__).resolve().parent.parent / "assets"
SCRIPTS = (
    "page.format.js",
    "page.data.js",
    "page.chart.js",
    "page.live.js",
    "page.tiles.js",
    "page.map.js",
    "page.main.js",
)
MOST_BLOCKS = 240_000  # one by one, of all devices drawn
MOST_DATA_BYTES = 5_500_000  # of a page of 6 MiB
_LIBRARIES = {"uplot": "uplot.min.js", "d3-hierarchy": "d3-hierarchy.min.js"}


def render(report: Report) -> str:
    """The whole page."""
    scripts = [_library(name) for name in _LIBRARIES] + [_own_script()]
    style = "\n".join([_comment("uplot"), _asset("uplot.min.css"), _colors(), _asset("report.css")])
    return _template().render(
        policy=_policy(scripts, style),
        scripts=scripts,
        style=style,
        data=_data(report),
        **view.content(report),
    )


def _data(report: Report) -> str:
    """The charts' data; empty where there is nothing to draw. Of too much, the smallest blocks are left out first."""
    drawn = view.drawn_devices(report)
    if not drawn:
        return ""
    most = MOST_BLOCKS
    while len(text := _packed(report, drawn, most // len(drawn))) > MOST_DATA_BYTES and most > len(drawn):
        most = min(most // 2, int(0.8 * most * MOST_DATA_BYTES / len(text)))
    return text


def _packed(report: Report, drawn: Sequence[DeviceProfile], most: int) -> str:
    packer, names = Packer(), series.Names()
    source, whole = report.source, len(report.diagnosis.profile.devices)
    titles = [device_title(device, source.world_size, whole) or "this device" for device in drawn]
    devices = [series.device(device, packer, names, title, most) for device, title in zip(drawn, titles, strict=True)]
    return packer.text({"devices": devices, **names.content(), "titles": CATEGORY_TITLES, "colors": COLORS})


def _policy(scripts: list[str], style: str) -> str:
    """Content-Security-Policy: this page's own scripts and style by their digests, and no request at all."""
    allowed = " ".join(_digest(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _comment(library: str) -> str:
    return f"/*!\n{_asset(f'{library}.LICENSE').strip()}\n*/"


def _library(name: str) -> str:
    return f"{_comment(name)}\n{_asset(_LIBRARIES[name])}"


def _own_script() -> str:
    return "\n".join(["(() => {", '"use strict";', *map(_asset, SCRIPTS), "})();"])


def _colors() -> str:
    rules = "\n".join(f"  --part-{key}: {color};" for key, color in COLORS.items() if key != "free")
    fills = "\n".join(
        f".part-{key} {{ fill: var(--part-{key}); background-color: var(--part-{key}); }}" for key in COLORS
    )
    return f":root {{\n{rules}\n}}\n{fills}"


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.finalize = _plain
    return environment.from_string(_asset("report.html.j2"))


def _plain(value: object) -> object:
    """Control characters and those that turn a line around do not reach the page."""
    if isinstance(value, str) and type(value) is str:
        return value.encode("utf-8", "replace").decode("utf-8").translate(CONTROLS)
    return value
