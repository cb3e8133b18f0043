"""The documentation: built strictly, its links followed, its commands run."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
OUTSIDE = ("https://github.com/oomdoc/", "https://squidfunk.github.io/")  # the project, and the theme's credit
LOADED = re.compile(r'<(?:script|img)[^>]+src="https?://|<link[^>]+rel="stylesheet"[^>]+href="https?://')
BLOCK = re.compile(r"^```(sh|toml|python)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_COMMANDS = [page for page in PAGES if BLOCK.search(page.read_text("utf-8"))]


class Links(HTMLParser):
    """What a page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.targets += [value for name in ("href", "src") if (value := values.get(name))]
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; MkDocs ends with an error where strict building has anything to warn of."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install .[docs])")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert (built.returncode, built.stdout) == (0, ""), built.stdout + built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_every_link_leads_somewhere(site: Path) -> None:
    """Within the site: the file is there, and the anchor in it. Outside: only to the project's own repository."""
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 40
    assert (site / "api.html").exists()
    for path, links in pages.items():
        for target in links.targets:
            if target.startswith(("https://", "http://")):
                assert target.startswith(("https://github.com/oomdoc/", "https://squidfunk.github.io/")), (
                    f"{path}: {target}"
                )
            elif not target.startswith(("data:", "javascript:", "mailto:", "/")):
                file, anchor = urldefrag(unquote(target))
                there = (path.parent / file).resolve() if file else path
                assert there.exists(), f"{path.relative_to(site)}: {target}"
                if anchor and there in pages:
                    assert anchor in pages[there].anchors, f"{path.relative_to(site)}: {target}"


def test_every_cause_and_remedy_has_a_page(site: Path) -> None:
    from oomdoc.diagnosers.all_causes import DIAGNOSERS
    from oomdoc.remedies.all_remedies import REMEDIES

    assert {path.stem for path in (site / "causes").glob("OOM*.html")} == {each.CODE for each in DIAGNOSERS.values()}
    names = {path.stem for path in (site / "remedies").glob("*.html")} - {"index"}
    assert names == {each.NAME for each in REMEDIES.values()}
    page = (site / "causes" / "OOM004.html").read_text(encoding="utf-8")
    for words in ('id="what-it-means"', 'id="known-limits"', 'href="../remedies/activation-checkpointing.html"'):
        assert words in page


def test_the_built_site_loads_nothing_from_outside(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not re.search(
            r'<(?:script|link|img)[^>]+(?:src|href)="https?://(?!github\.com)', path.read_text("utf-8")
        )


def blocks(page: Path) -> list[tuple[str, str]]:
    """(file name, text) of the blocks that are written to a file, or run where they name none; in their order."""
    return [(found[2] or "", found[3]) for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text("utf-8"))], ids=lambda page: page.stem
)
def test_every_command_shown_runs(page: Path, tmp_path: Path) -> None:
    """In a folder with the examples, one page after its own order; `# exit status N` says where it is not 0."""
    for script in (ROOT / "examples").glob("train_*.py"):
        shutil.copy(script, tmp_path)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in (("oomdoc", "-m oomdoc "), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    if not any(each.value.startswith("oomdoc.") for each in entry_points(group="pytest11")):
        environment["PYTEST_PLUGINS"] = "oomdoc.api.pytest_plugin"  # run from a folder, not installed
    ran = 0
    for title, text in blocks(page):
        if title:
            (tmp_path / title).write_text(text)
            continue
        for line in filter(str.strip, text.splitlines()):
            told = re.search(r"# exit status (\d+)", line)
            done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == (int(told.group(1)) if told else 0), f"{line}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran
