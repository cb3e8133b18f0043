"""What `--format` takes."""

from enum import Enum


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
