"""Proves a candidate by running the script again with it, and writes the chosen one as oomdoc.yaml."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .inputs import CONFIG_FILE, Command

if TYPE_CHECKING:
    from ..diagnosers.interface import MemoryProfile
    from ..recorders.launch import RunResult
    from ..remedies.interface import Candidate, Job, Setting, Verified, Verify

LOG_FILE = "output.log"
UNLIMITED_BYTES = 1 << 44  # 16 TiB: no job reaches it, and the virtual driver's addresses hold it


def whole_profile(command: Command, directory: Path) -> "MemoryProfile | None":
    """The same run on a card that never fills: what comes after the failure. None where it could not be recorded."""
    from ..api.pipeline import profile_files
    from .launching import record

    folder = directory / "unlimited"
    folder.mkdir(parents=True, exist_ok=True)
    result = record(
        replace(command, capacity_bytes=UNLIMITED_BYTES),
        folder,
        what="what the whole step needs",
        log=folder / LOG_FILE,
    )
    if not result.snapshots or result.exit_status:
        return None
    return profile_files(result.snapshots)


def verifier(command: Command, directory: Path) -> "Verify":
    """A function that runs `command` with the settings it is given, in a folder of its own under `directory`."""
    done = 0

    def verify(settings: "tuple[Setting, ...]") -> "Verified":
        nonlocal done
        done += 1
        names = "+".join(setting.name for setting in settings)
        folder = directory / "verify" / f"{done}-{names}"
        folder.mkdir(parents=True, exist_ok=True)
        write_settings(folder / CONFIG_FILE, settings, command)
        return _tried(replace(command, apply=str(folder / CONFIG_FILE)), folder, f"trying {names}")

    return verify


def with_config(command: Command, directory: Path, config: Path, text: str, *, apply: bool) -> "Verified | None":
    """Runs `command` with `text` in the place of its config file: an argument of the script, or with `apply` its
    oomdoc.yaml. None where the script takes no such argument."""
    folder = directory / "verify" / "fix"
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / config.name
    copy.write_bytes(text.encode())
    if apply:
        command = replace(command, apply=str(copy))
    else:
        args = tuple(_in_place_of(arg, config, copy) for arg in command.args)
        if args == command.args:
            return None
        command = replace(command, args=args)
    return _tried(command, folder, f"trying {config}")


def _in_place_of(arg: str, config: Path, copy: Path) -> str:
    option, equals, value = arg.rpartition("=")
    if arg.startswith("-") and not equals:
        return arg
    return f"{option}{equals}{copy}" if Path(value).resolve() == config.resolve() else arg


def _tried(command: Command, folder: Path, what: str) -> "Verified":
    from ..api.pipeline import profile_files
    from ..remedies.interface import Verified
    from .launching import record

    result = record(command, folder, what=what, log=folder / LOG_FILE)
    error = error_of(result)
    if not result.snapshots:
        on = "virtual" if command.virtual else "cuda"
        return Verified(on=on, peak_bytes=0, reserved_bytes=0, fits=False, error=error or "nothing was recorded")
    allocated, reserved = peaks_of(profile_files(result.snapshots))
    return Verified(
        on="virtual" if command.virtual else "cuda",
        peak_bytes=allocated,
        reserved_bytes=reserved,
        fits=error is None and not result.out_of_memory,
        error=error,
    )


def error_of(result: "RunResult") -> str | None:
    """Why the run says nothing about the remedy. Out of memory does say something."""
    if result.failure:
        return " ".join(result.failure.split())
    if result.exit_status and not result.out_of_memory:
        return f"the script ended with status {result.exit_status}; its output is in {result.run_dir / LOG_FILE}"
    return None


def peaks_of(profile: "MemoryProfile") -> tuple[int, int]:
    """The highest allocated and reserved bytes of any device; requested where nothing more is known."""
    peaks = [device.peak for device in profile.devices]
    allocated = max((peak.allocated_bytes or peak.requested_bytes for peak in peaks), default=0)
    reserved = max((peak.reserved_bytes or 0 for peak in peaks), default=0)
    return allocated, max(allocated, reserved)


def write_settings(path: Path, settings: "Sequence[Setting]", command: Command) -> None:
    from ..remedies.config_file import ConfigFile, write

    write(
        ConfigFile(remedies=tuple(settings), script=command.script, gpu=command.gpu, world_size=command.world_size),
        path,
    )


def write_candidate(path: Path, candidate: "Candidate", job: "Job", script: str | None) -> None:
    """The chosen candidate as oomdoc.yaml: what `run --apply` takes and `fix` starts from."""
    from ..remedies.config_file import ConfigFile, write

    estimate, verified = candidate.estimate, candidate.verified
    seen = verified is not None and verified.error is None
    expected = verified.peak_bytes if verified is not None and seen else estimate.predicted_peak_bytes.expected
    write(
        ConfigFile(
            remedies=estimate.settings,
            script=script,
            gpu=job.gpu,
            world_size=job.world_size,
            batch_size=job.batch_size,
            expected_peak_bytes=expected,
            expected_step_time_factor=round(estimate.step_time_factor.expected, 3),
        ),
        path,
    )
