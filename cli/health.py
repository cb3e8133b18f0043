"""What `oomdoc doctor` looks at, a line each. torch is not imported: a check must not start CUDA."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import OomdocError
from ..recorders import host_memory, nvml
from ..reports.text import size

OLDEST_TORCH = (2, 6)
_CONF_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
SMALL_SHM = 1 << 30  # a DataLoader worker holds 2 batches in it; Docker's default of 64 MiB is not enough for images
NEARLY_FULL = 0.9
TOLD_HOLDERS = 4
# The oldest driver of each CUDA that a torch may be built for (NVIDIA's CUDA compatibility table, Linux).
_DRIVERS = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, whether it is as it should be, and what to do otherwise."""

    name: str
    good: bool | None  # None: told, not judged
    text: str


def all_checks(environment: Mapping[str, str] | None = None) -> list[Check]:
    env = os.environ if environment is None else environment
    found = nvml.cards()
    return [
        _python(),
        _torch(found),
        *_gpus(found, env),
        *_settings(env),
        *_host(),
        _launcher(),
        *_abilities(found, env),
    ]


def _python() -> Check:
    import platform

    return Check("Python", sys.version_info >= (3, 10), f"{platform.python_version()} at {sys.executable}")


def _torch(found: list[nvml.Card] | str) -> Check:
    from .fault import installed

    version = installed("torch")
    if version == "not installed":
        return Check("torch", False, "not installed here: reports work, runs need `pip install torch`")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        return Check("torch", False, f"{version}: oomdoc run needs 2.6 or newer")
    if isinstance(found, str):
        return Check("torch", True, version)
    return _with_driver(version, found[0].driver)


def _with_driver(version: str, driver: str) -> Check:
    """The build's CUDA against the driver, as far as the version's own name tells it (2.13.0+cu126)."""
    _, _, build = version.partition("+")
    if build == "cpu":
        return Check(
            "torch", False, f"{version} is built without CUDA, and this machine has a GPU: install a CUDA build"
        )
    cuda = int(build[2:4]) if build.startswith("cu") and build[2:4].isdigit() else None
    needed = _DRIVERS.get(cuda) if cuda is not None else None
    have = int(driver.split(".")[0]) if driver.split(".")[0].isdigit() else None
    if needed is not None and have is not None and have < needed:
        text = f"{version} needs driver {needed} or newer, and this one is {driver}: CUDA will not start"
        return Check("torch", False, text)
    return Check("torch", True, f"{version}, driver {driver}")


def _gpus(found: list[nvml.Card] | str, env: Mapping[str, str]) -> list[Check]:
    if isinstance(found, str):
        return [Check("GPUs", None, f"none seen ({found}): oomdoc run uses the virtual GPU")]
    visible = env.get("CUDA_VISIBLE_DEVICES")
    checks = [check for card in found for check in _card(card)]
    if visible is not None:
        told = f"{visible!r}: only these are used" if visible else "empty: no GPU is used"
        checks.append(Check("CUDA_VISIBLE_DEVICES", None, told))
    return checks


def _card(card: nvml.Card) -> list[Check]:
    name = f"GPU {card.index}"
    checks = [Check(name, None, f"{card.name}: {size(card.used_bytes)} of {size(card.total_bytes)} in use{_by(card)}")]
    gone = [each for each in card.holders if not each.alive]
    if gone:
        pids = ", ".join(str(each.pid) for each in gone)
        text = (
            f"{size(sum(each.used_bytes for each in gone))} held by {pids}, no live process here: a zombie (end its "
            "parent), or one outside this container"
        )
        checks.append(Check(name, False, text))
    elif card.holders_told and card.unexplained_bytes > NOISE_BYTES:
        text = (
            f"{size(card.unexplained_bytes)} in use by no process that NVML names: another container or user, "
            "or what a killed process left (nvidia-smi --gpu-reset frees it once nobody uses the card)"
        )
        checks.append(Check(name, False, text))
    if card.mig is not None:
        checks.append(Check(name, None, _mig(card)))
    return checks


NOISE_BYTES = 1 << 30  # the driver's own share of a card is some hundred MiB where NVML does not tell it apart


def _by(card: nvml.Card) -> str:
    if not card.holders_told:
        return " (the driver does not tell by whom)"
    told = [f"{each.name or 'process'} {each.pid} {size(each.used_bytes)}" for each in card.holders[:TOLD_HOLDERS]]
    more = len(card.holders) - TOLD_HOLDERS
    return f" ({', '.join(told)}{f' and {more} more' if more > 0 else ''})" if told else ""


def _mig(card: nvml.Card) -> str:
    """A job gets one slice, so that is its capacity."""
    if not card.mig:
        return "MIG is on, and no instance is made: nothing can run on it (nvidia-smi mig -cgi ... -C)"
    parts = ", ".join(f"{each.index}: {size(each.used_bytes)} of {size(each.total_bytes)}" for each in card.mig)
    return f"MIG is on; a process has one instance, whose memory is its capacity ({parts})"


def _settings(env: Mapping[str, str]) -> list[Check]:
    return [_setting(name, env[name]) for name in _CONF_VARIABLES if name in env]


def _setting(name: str, value: str) -> Check:
    from ..allocator.config import parse

    try:
        parse(value)
    except (OomdocError, ValueError) as error:
        return Check(name, False, f"{value!r}: {error}")
    return Check(name, True, value)


def _host() -> list[Check]:
    checks = []
    total, bound = host_memory.total_bytes(), host_memory.limit()
    if total is not None:
        text = f"{size(total)} on this machine"
        good = None
        if bound is not None and bound.limit_bytes < total:
            text += f", of which this container or job may use {size(bound.limit_bytes)} ({bound.what})"
            full = bound.used_bytes >= NEARLY_FULL * bound.limit_bytes
            good = False if full else None
            text += f"; {size(bound.used_bytes)} are in use, page cache included" if full else ""
        checks.append(Check("host memory", good, text))
    room = host_memory.shm()
    if room is not None:
        small = room[0] < SMALL_SHM
        hint = ": DataLoader workers die of a bus error when it is full (docker run --shm-size=8g)" if small else ""
        checks.append(Check("/dev/shm", None if small else True, f"{size(room[1])} free of {size(room[0])}{hint}"))
    pinned = _locked_limit()
    if pinned is not None:
        checks.append(Check("pinned memory", None, pinned))
    kills = host_memory.kernel_kills()
    if kills:
        checks.append(Check("kernel", None, f"killed {kills} processes here for lack of host memory since it started"))
    return checks


def _locked_limit() -> str | None:
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    except (ImportError, OSError, ValueError):
        return None
    if soft == resource.RLIM_INFINITY:
        return "no limit on locked memory"
    return f"locked memory is limited to {size(soft)} (CUDA's pinned memory is not bound by it; RDMA for NCCL is)"


def _launcher() -> Check:
    from ..recorders.placement import placement

    placed = placement()
    if placed is None:
        return Check("launcher", None, "none: oomdoc run starts the ranks itself (--nproc-per-node)")
    where = f"rank {placed.rank} of {placed.world_size}"
    return Check("launcher", None, f"{placed.launcher} made this process {where}: oomdoc run records it in place")


def _abilities(found: list[nvml.Card] | str, env: Mapping[str, str]) -> list[Check]:
    from ..configs.loader import gpus
    from .fault import installed

    if installed("torch") == "not installed":
        return [Check("virtual GPU", False, "needs torch (a CPU build is enough)")]
    checks = [Check("virtual GPU", None, f"oomdoc run --virtual --gpu NAME train.py; {len(gpus())} cards known")]
    if env.get("OOMDOC_ACCELERATOR"):
        checks.append(Check("accelerator", None, f"{env['OOMDOC_ACCELERATOR']} takes the place of CUDA"))
    if not isinstance(found, str) and env.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        many = f" --nproc-per-node {len(found)}" if len(found) > 1 else ""
        checks.append(Check("real GPUs", True, f"oomdoc run{many} train.py records on them"))
    return checks
