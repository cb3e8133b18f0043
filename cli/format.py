"""What `--format` takes, and what the name of `--output` says about it."""

from enum import Enum
from pathlib import Path


class Format(str, Enum):
    """The renderers are in reports.all_formats."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"
    SVG = "svg"
    HTML = "html"
    SARIF = "sarif"
    JUNIT = "junit"
    GITHUB = "github"
    GITLAB = "gitlab"
    PERFETTO = "perfetto"
    SPEEDSCOPE = "speedscope"
    COLLAPSED = "collapsed"
    CSV = "csv"
    PARQUET = "parquet"
    SNAPSHOT = "snapshot"


_BY_SUFFIX = {
    ".json": Format.JSON,
    ".md": Format.MARKDOWN,
    ".svg": Format.SVG,
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".sarif": Format.SARIF,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".pickle": Format.SNAPSHOT,
}


def format_of(output: Path | None) -> Format:
    """What a file of this name holds, where no `--format` was given."""
    return Format.TERMINAL if output is None else _BY_SUFFIX.get(output.suffix.lower(), Format.TERMINAL)
