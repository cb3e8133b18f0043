"""The README speaks of the commands and options that there are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


def help_of(*command: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "oomdoc", *command, "--help"], env={**os.environ, **WIDE}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def shown() -> list[list[str]]:
    """The words of every `oomdoc …` line in a code block of the README, without its trailing comment."""
    blocks = re.findall(r"```\w*\n(.*?)```", README, re.DOTALL)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    found = [re.search(r"(?:^|\s)oomdoc (\w.*)", line) for line in lines]
    return [each.group(1).split() for each in found if each]


@pytest.fixture(scope="module")
def commands() -> list[str]:
    return re.findall(r"^│ (\w+) ", help_of().split("Commands", 1)[1], re.MULTILINE)


def test_every_command_is_in_the_readme(commands: list[str]) -> None:
    assert len(commands) >= 8
    assert [name for name in commands if f"oomdoc {name}" not in README] == []


def test_every_command_and_option_of_the_readme_exists(commands: list[str]) -> None:
    pages: dict[str, str] = {}
    assert len(shown()) >= 8
    for name, *words in shown():
        assert name in commands
        page = pages.setdefault(name, help_of(name))
        script = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
        for option in (word for word in words[:script] if word.startswith("-")):
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", page), f"oomdoc {name} has no {option}"


def test_the_formats_of_the_readme_are_those_of_the_help() -> None:
    formats = re.search(r"`--format ([\w|]+)`", README)
    assert formats is not None
    page = re.sub(r"[│\s]", "", help_of("analyze"))
    assert f"written:{formats.group(1).replace('|', ',')}." in page


def test_exit_statuses_agree() -> None:
    page = " ".join(help_of().split())
    for status, words in (
        ("1", "out of memory"),
        ("2", "wrong usage"),
        ("3", "cannot be read"),
        ("4", "fault of oomdoc"),
    ):
        assert re.search(rf"{status} [^;]*{words}", page)
        assert re.search(rf"\| {status} \|.*{words}", README)
