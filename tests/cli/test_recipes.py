"""The README's CI recipes, run as written on a repository made on the spot.

What only a runner can do is played: actions/checkout is a clone, actions/setup-python is the Python that runs this, and
`pip` installs nothing, for torch and this package are here. Everything else is the recipe's own text.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

TRAIN = """
import sys

import torch
import torch.nn as nn

hidden = 1024
batch = int(sys.argv[2])
model = nn.Sequential(nn.Linear(256, hidden), nn.Tanh(), nn.Linear(hidden, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.ones(batch, 512, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def recipe(language: str, name: str) -> str:
    """The block of the README that holds `name`."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = (block for block in blocks if name in block)
    return str(found)


class Runner:
    """A CI runner: a clone of the repository and a shell."""

    def __init__(self, repository: Path, folder: Path, tools: Path) -> None:
        self.repository, self.folder, self.tools = repository, folder, tools
        self.summary = folder.with_suffix(".md")
        self.output = ""

    def sh(self, command: str, where: str = ".", **variables: str) -> bool:
        """As GitHub starts it: bash -e; True when it succeeds."""
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "CI": "true",
            "NO_COLOR": "1",
            "COLUMNS": "100",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_ACTION_PATH": str(ROOT),
            **variables,
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],
            cwd=self.folder / where,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.output += done.stdout
        return done.returncode == 0

    def github(self, workflow: dict[str, Any]) -> bool:
        (job,) = workflow["jobs"].values()
        return all(self.step(each) for each in job["steps"])

    def step(self, step: dict[str, Any]) -> bool:
        if "run" in step:
            return self.sh(step["run"])
        action = step["uses"].partition("@")[0]
        if action == "actions/checkout":
            assert step["with"] == {"fetch-depth": 0}
            git(self.folder.parent, "clone", "-q", str(self.repository), self.folder.name)
            return True
        if action == "actions/setup-python":
            return True
        assert action == "oomdoc/oomdoc"
        return self.composite(yaml.safe_load((ROOT / "action.yml").read_text()), step.get("with", {}))

    def composite(self, action: dict[str, Any], given: dict[str, str]) -> bool:
        """Our own action: its inputs put in place, its steps run."""
        inputs = {name: str(given.get(name, each.get("default", ""))) for name, each in action["inputs"].items()}
        assert set(given) <= set(inputs)

        def filled(text: str) -> str:
            return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match.group(1)], text)

        return all(
            self.sh(
                filled(step["run"]),
                filled(step.get("working-directory", ".")),
                **{key: filled(value) for key, value in step.get("env", {}).items()},
            )
            for step in action["runs"]["steps"]
        )


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, env=variables)


def commit(repository: Path, what: str) -> None:
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", what)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`oomdoc` as installed, and a `pip` that finds everything there."""
    folder = tmp_path_factory.mktemp("tools")
    scripts = {
        "oomdoc": f'exec {sys.executable} -m oomdoc "$@"',
        "pip": 'test "$1" = install',
        "python": f'if [ "$1 $2" = "-m pip" ]; then exit 0; fi; exec {sys.executable} "$@"',
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory, tools: Path) -> Path:
    """The README's oomdoc.toml, its jobs on one card to save the test's time; the baseline as --update writes it."""
    folder = tmp_path_factory.mktemp("project") / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    config = recipe("toml", "[gate.jobs.train]").replace(', "h100-80gb"]', "]")
    (folder / "oomdoc.toml").write_text(config)
    git(folder, "init", "-q")
    assert Runner(folder, folder, tools).sh("oomdoc gate --update")
    commit(folder, "baseline")
    return folder


@pytest.fixture
def repository(tmp_path: Path, committed: Path) -> Path:
    """A clone of it that a test may change."""
    git(tmp_path, "clone", "-q", str(committed), "repository")
    return tmp_path / "repository"


@pytest.mark.slow
def test_the_github_recipe(tmp_path: Path, tools: Path, repository: Path) -> None:
    """Green; the same bytes again; red after a commit that doubles the hidden size, naming that line; then accepted."""
    workflow = yaml.safe_load(recipe("yaml", ".github/workflows/memory.yml"))
    first, second = (Runner(repository, tmp_path / name, tools) for name in ("first", "second"))
    assert first.github(workflow), first.output
    assert second.github(workflow)
    assert first.output == second.output
    assert first.summary.read_bytes() == second.summary.read_bytes()
    assert first.summary.read_text().startswith("## Gate passed")

    (repository / "train.py").write_text(TRAIN.replace("hidden = 1024", "hidden = 2048"))
    commit(repository, "a wider model")
    red = Runner(repository, tmp_path / "red", tools)
    assert not red.github(workflow)
    line = next(number for number, text in enumerate(TRAIN.splitlines(), 1) if text.startswith("hidden ="))
    assert f"train.py:{line}: hidden = 2048" in red.output.replace("%3A", ":")
    assert red.output.startswith("::error file=train.py,line=")
    assert f"train.py:{line}: hidden = 2048" in red.summary.read_text()

    assert Runner(repository, repository, tools).sh("oomdoc gate --update")
    commit(repository, "the growth is meant")
    green = Runner(repository, tmp_path / "green", tools)
    assert green.github(workflow), green.output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gitlab", "shell"])
def test_the_other_recipes(tmp_path: Path, tools: Path, repository: Path, kind: str) -> None:
    """Each line of them, in a fresh clone."""
    runner = Runner(repository, tmp_path / "clone", tools)
    git(tmp_path, "clone", "-q", str(repository), "clone")
    if kind == "shell":
        assert runner.sh(recipe("sh", "oomdoc gate")), runner.output
        assert "● Gate passed" in runner.output
        return
    job = yaml.safe_load(recipe("yaml", ".gitlab-ci.yml"))["memory"]
    assert all(runner.sh(line) for line in job["script"]), runner.output
    assert (runner.folder / job["artifacts"]["reports"]["codequality"]).read_text() == "[]\n"


def test_the_hook_is_a_command_that_there_is() -> None:
    """pre-commit runs `entry`, and needs the keys that its documentation names."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language"} <= set(hook)
    assert f"id: {hook['id']}" in README
    program, command = hook["entry"].split()
    assert (program, command) == ("oomdoc", "gate")


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "status"), [("1GiB", 0), ("1MiB", 1)])
def test_the_hook_under_pre_commit_itself(tmp_path: Path, budget: str, status: int) -> None:
    """`pre-commit try-repo` on a clone of this repository; its environment borrows torch from here."""
    beside = str(Path(sys.executable).parent)  # an environment that nobody activated
    tool = shutil.which("pre-commit", path=os.pathsep.join([beside, os.environ["PATH"]]))
    if tool is None:
        pytest.skip("pre-commit is not installed (pip install pre-commit)")
    git(tmp_path, "clone", "-q", str(ROOT), "oomdoc")
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("import torch\nx = torch.ones(1024, 1024, device='cuda')\n")
    (project / "oomdoc.toml").write_text(
        f'[gate.jobs.train]\nscript = "train.py"\ngpu = "a100-40gb"\nbudget = "{budget}"\n'
    )
    git(project, "init", "-q")
    commit(project, "a job")
    here = [path for path in sys.path if path.endswith("site-packages")]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    variables |= {"PRE_COMMIT_HOME": str(tmp_path / "home"), "PIP_NO_DEPS": "1", "PYTHONPATH": os.pathsep.join(here)}
    done = subprocess.run(
        [tool, "try-repo", "../oomdoc", "oomdoc-gate", "--all-files", "--hook-stage", "pre-push", "--verbose"],
        cwd=project, env=variables, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert ("Gate passed" if status == 0 else "Gate exceeded") in done.stdout
