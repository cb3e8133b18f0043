"""`oomdoc gate` on a configured matrix: what a pull request sees."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from referencing import Registry, Resource

Run = Callable[..., subprocess.CompletedProcess[str]]
CONFIGS = Path(__file__).parents[2] / "configs"
MIB = 2**20

TRAIN = """
import torch
import torch.nn as nn

hidden = 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, hidden)
        self.down = nn.Linear(hidden, 256)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


model = nn.Sequential(Block(), Block()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.ones(16, 256, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CONFIG = """
[gate]
growth = "1%"

[gate.jobs.train]
script = "train.py"
gpu = ["t4", "a100-40gb"]
steps = 2
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "oomdoc.toml").write_text(CONFIG)
    return tmp_path


def valid(text: str) -> dict[str, Any]:
    schemas = {name: json.loads((CONFIGS / name).read_text()) for name in ("gate.schema.json", "report.schema.json")}
    registry: Registry[Any] = Registry().with_resources(
        [(schema["$id"], Resource.from_contents(schema)) for schema in schemas.values()]
    )
    content: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(schemas["gate.schema.json"], registry=registry).validate(content)
    return content


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def line_of(text: str, source: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


@pytest.mark.slow
def test_a_doubled_size_is_named(oomdoc: Run, project: Path) -> None:
    """Code that only moves leaves the baseline as it is; what grew is told by changed line, category and line."""
    assert oomdoc("gate", "--update").returncode == 0
    baseline = (project / "oomdoc-baseline.json").read_bytes()
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "baseline")

    moved = "# a comment\n" + TRAIN
    (project / "train.py").write_text(moved)
    green = oomdoc("gate", "--update", "--format", "json")
    assert green.returncode == 0, green.stdout
    assert all(job["report"]["gate"]["moved"] == [] for job in valid(green.stdout)["jobs"])
    assert (project / "oomdoc-baseline.json").read_bytes() == baseline

    doubled = moved.replace("hidden = 1024", "hidden = 2048")
    (project / "train.py").write_text(doubled)
    red = oomdoc("gate", "--format", "json")
    assert red.returncode == 1
    content = valid(red.stdout)
    assert content["passed"] is False
    for job in content["jobs"]:
        gate = job["report"]["gate"]
        assert {"file": "train.py", "line": line_of("hidden =", doubled), "code": "hidden = 2048"} in gate["changes"]
        assert "activation" in {each["category"] for each in gate["categories"]}
        (row,) = (each for each in gate["moved"] if each["category"] == "activation" and each["bytes"] > MIB)
        assert (row["file"], row["line"]) == ("train.py", line_of("torch.tanh", doubled))
        assert row["after_bytes"] > 1.5 * row["before_bytes"]
        assert sum(each["bytes"] for each in gate["moved"]) == sum(each["bytes"] for each in gate["categories"])
        assert gate["remedy"] is None or gate["remedy"]["predicted_peak_bytes"]["high"] <= gate["baseline_bytes"] * 1.01


@pytest.mark.slow
def test_the_remedy_brings_the_peak_below_the_budget(oomdoc: Run, project: Path) -> None:
    red = oomdoc("gate", "--budget", "92MiB", "--gpu", "t4", "--format", "json", "train.py")
    assert red.returncode == 1
    gate = json.loads(red.stdout)["gate"]
    assert gate["remedy"]["predicted_peak_bytes"]["high"] <= 92 * MIB < gate["peak_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu", "t4"), "are for one script"),
        (("--metric", "reserved"), "are for one script"),
        (("--steps", "1"), "are for one script"),
        (("--jobs", "2", "--budget", "1GiB", "train.py"), "for the jobs of a file"),
    ],
)
def test_what_would_do_nothing_is_refused(oomdoc: Run, project: Path, arguments: tuple[str, ...], words: str) -> None:
    done = oomdoc("gate", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.slow
def test_every_format_of_an_exceeded_gate(oomdoc: Run, project: Path) -> None:
    """Annotations as GitHub parses them, code quality, JUnit: all point at a line of the repository."""
    config = CONFIG.replace('growth = "1%"', 'budget = "40MiB"').replace(', "a100-40gb"]', "]")
    (project / "oomdoc.toml").write_text(config)
    (project / ".git").mkdir()
    summary = project / "summary.md"
    done = oomdoc("gate", "--format", "github", GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1
    commands = [line.removeprefix("::").partition("::") for line in done.stdout.splitlines()]
    kind, _, properties = commands[0][0].partition(" ")
    told = dict(each.split("=", 1) for each in properties.split(","))
    assert (kind, told["file"]) == ("error", "train.py")
    assert "activations here" in commands[0][2]
    assert "at most 40.0 MiB" in commands[0][2]
    assert int(told["line"]) == line_of("torch.tanh", TRAIN)
    assert summary.read_text().startswith("## Gate exceeded\n")
    (project / "oomdoc.toml").write_text("[gate.jobs.old]\nsnapshots = ['.oomdoc/gate/train']\nbudget = '40MiB'\n")
    report = "report.json"
    assert oomdoc("gate", "--format", "gitlab", "--output", report).returncode == 1
    issues = json.loads((project / report).read_text())
    for issue in issues:
        assert issue["location"]["path"] == "train.py"
        assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
    assert len({issue["fingerprint"] for issue in issues}) == len(issues) >= 2
    suites = ElementTree.fromstring(oomdoc("gate", "--format", "junit").stdout)
    assert suites.get("failures") == "1"
    assert suites.find("testsuite/testcase[@name='budget']/failure") is not None
    assert suites.find("testsuite/testcase[@name='fits']/failure") is None


@pytest.mark.slow
def test_a_script_that_fails_does_not_hide_the_others(oomdoc: Run, project: Path) -> None:
    """Status 3, the end of its log on stderr, and the other job judged."""
    (project / "fails.py").write_text("raise SystemExit('no data here')\n")
    (project / "oomdoc.toml").write_text(
        "[gate.jobs.fails]\nscript = 'fails.py'\n[gate.jobs.train]\nscript = 'train.py'\nbudget = '1GiB'\n"
    )
    done = oomdoc("gate", "--format", "json")
    assert done.returncode == 3
    assert "no data here" in done.stderr
    first, second = valid(done.stdout)["jobs"]
    assert (first["report"], second["failure"]) == (None, None)
    assert "the gate cannot judge it" in first["failure"]
    assert second["report"]["gate"]["passed"] is True


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        (["--headroom", "98%"], 0),
        (["--headroom", "99.5%"], 1),  # the context alone takes 1 % of this card
        (["--headroom", "14.5GiB"], 0),
        (["--headroom", "15GiB"], 1),
        (["--budget", "4MiB"], 0),
        (["--budget", "4194303"], 1),
        (["--budget", "4MiB", "--metric", "reserved"], 1),  # 20 MiB in one segment
        (["--budget", "4MiB", "--headroom", "15GiB"], 1),
    ],
)
def test_limits(oomdoc: Run, four_mib: Path, limit: list[str], status: int) -> None:
    """4 MiB on a T4 of 14.74 GiB; all limits have to hold."""
    assert oomdoc("gate", *limit, four_mib).returncode == status


@pytest.fixture(scope="module")
def four_mib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of one tensor."""
    folder = tmp_path_factory.mktemp("four")
    (folder / "one.py").write_text("import torch\nkept = torch.zeros(1 << 20, device='cuda')\n")
    command = [sys.executable, "-m", "oomdoc", "run", "--virtual", "--gpu", "t4", "-o", "there", "one.py"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "there"


def test_an_update_keeps_what_could_not_be_measured(oomdoc: Run, tmp_path: Path, four_mib: Path) -> None:
    """And drops the jobs that the file no longer has; a baseline with a merge conflict is written anew."""
    (tmp_path / "there").symlink_to(four_mib)

    def jobs(**snapshots: str) -> list[str]:
        sections = [f"[gate.jobs.{name}]\nsnapshots = ['{path}']\n" for name, path in snapshots.items()]
        (tmp_path / "oomdoc.toml").write_text("".join(sections))
        oomdoc("gate", "--update")
        return list(json.loads((tmp_path / "oomdoc-baseline.json").read_text())["jobs"])

    assert jobs(a="there", b="there") == ["a", "b"]
    assert jobs(a="there", b="gone") == ["a", "b"]
    assert jobs(a="there") == ["a"]
    (tmp_path / "oomdoc-baseline.json").write_text("<<<<<<< ours\n")
    assert oomdoc("gate").returncode == 3
    assert jobs(a="there", b="there") == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--budget", "1GiB"], "limits on the command line are for one script"),
        (["--job", "eval"], "has no job 'eval': train[t4], train[a100-40gb]"),
        (["--config", "none.toml"], "cannot read none.toml"),
        (["--output", "a.html"], "--format html draws one job: name it with --job"),
        (["train.py"], "a gate needs a limit"),
        (["--growth", "2 percent", "train.py"], "'2 percent' is not a size"),
        (["--job", "train", "--budget", "1GiB", "train.py"], "are for the jobs of a file"),
    ],
)
def test_wrong_usage_is_told_in_one_line(oomdoc: Run, project: Path, arguments: list[str], told: str) -> None:
    """Before anything runs."""
    done = oomdoc("gate", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (project / ".oomdoc").exists()


@pytest.mark.slow
def test_a_baseline_of_one_script(oomdoc: Run, project: Path) -> None:
    """Without a file: --update adds the command line to the baseline, the next run is held against it."""
    limits = ["--growth", "0", "--gpu", "t4", "--steps", "1", "train.py"]
    assert oomdoc("gate", *limits).returncode == 2
    assert oomdoc("gate", "--update", *limits).returncode == 0
    assert oomdoc("gate", *limits).returncode == 0
    content = json.loads((project / "oomdoc-baseline.json").read_text())
    assert list(content["jobs"]) == ["train.py"]


@pytest.mark.slow
def test_diff_fails_on_growth(oomdoc: Run, project: Path) -> None:
    """Status 1 only beyond what is allowed; the comparison is printed in any case."""
    (project / "wide.py").write_text(TRAIN.replace("hidden = 1024", "hidden = 2048"))
    for name in ("train", "wide"):
        assert oomdoc("run", "--gpu", "t4", "--steps", "1", "-o", name, f"{name}.py").returncode == 0
    grown = oomdoc("diff", "--fail-on-growth", "10%", "train", "wide")
    assert grown.returncode == 1
    assert "the peak grew by more than allowed" in grown.stderr
    assert "Memory change" in grown.stdout
    assert oomdoc("diff", "--fail-on-growth", "1GiB", "train", "wide").returncode == 0
    assert oomdoc("diff", "--fail-on-growth", "0", "wide", "train").returncode == 0
