"""Whether another launcher started this process as one rank of many, and as which: then it is recorded in place.

Each launcher is known by the variables that it sets. torch is not imported here.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One rank. `job` is the same in all ranks of one start, and tells it from other starts as far as that is known."""

    launcher: str
    rank: int
    local_rank: int
    world_size: int
    job: str
    restarts: int = 0  # how often an elastic launcher has started the ranks anew


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: str
    local_rank: str
    world_size: str
    job: tuple[str, ...]  # variables that name the start
    needs: tuple[str, ...] = ()


# "a launcher": deepspeed, accelerate and others set the three variables alone. The innermost one
# first: a torchrun that srun started sets its own on top.
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID",), ("TORCHELASTIC_RUN_ID",)),
    _Launcher("a launcher", "RANK", "LOCAL_RANK", "WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT")),
    _Launcher(
        "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)
    ),
    _Launcher(
        "mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE", ("MPIRUN_ID",)
    ),
    _Launcher("mpirun", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", ("HYDI_CONTROL_FD", "PMI_ID", "I_MPI_JOB_ID")),
    _Launcher(
        "srun", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        ("SLURM_STEP_ID",),
    ),
)  # fmt: skip


def placement(environment: Mapping[str, str] | None = None) -> Placement | None:
    """None for a process of its own; also where a launcher started a single one."""
    env = os.environ if environment is None else environment
    for launcher in _LAUNCHERS:
        found = _placed(launcher, env)
        if found is not None:
            return found if found.world_size > 1 else None
    return None


def _placed(launcher: _Launcher, env: Mapping[str, str]) -> Placement | None:
    try:
        rank, world_size = int(env[launcher.rank]), int(env[launcher.world_size])
        local_rank = int(env.get(launcher.local_rank, rank))
    except (KeyError, ValueError):
        return None
    if not all(name in env for name in launcher.needs) or not 0 <= rank < world_size:
        return None
    return Placement(
        launcher=launcher.name,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        job=_job(launcher, env),
        restarts=int(env.get("TORCHELASTIC_RESTART_COUNT", "0") or 0),
    )


def _job(launcher: _Launcher, env: Mapping[str, str]) -> str:
    """Without an id of its own, a start is its launcher process, where all ranks are children of one."""
    named = [env[name] for name in launcher.job if env.get(name, "none") != "none"]
    if launcher.name in ("torchrun", "a launcher") and env.get("TORCHELASTIC_RUN_ID", "none") == "none":
        one_node = env.get("LOCAL_WORLD_SIZE", env["WORLD_SIZE"]) == env["WORLD_SIZE"]
        if one_node:
            named = [env.get("MASTER_PORT", ""), _parent()]
    text = "-".join(filter(None, named)) or _parent()
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)[:80]


def _parent() -> str:
    """The parent's id, with the moment it started: ids come again."""
    pid = os.getppid()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{pid}-{fields[19]}"
    except (OSError, IndexError):
        return str(pid)
