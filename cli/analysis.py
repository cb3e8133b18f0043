"""What `oomdoc analyze` does, whoever has read its command line."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..api.files import LATEST, snapshot_files
from ..api.pipeline import diagnose_files
from ..errors import OomdocError
from .format import Format
from .logs import all_logs, analyze_logs
from .output import emit
from .rank_files import cards_in, chosen, localised, ranks_in

if TYPE_CHECKING:
    from ..diagnosers.interface import Diagnosis


def report_files(
    targets: Sequence[str],
    gpu: str | None = None,
    capacity: str | None = None,
    form: Format = Format.TERMINAL,
    output: Path | None = None,
) -> int:
    """Writes the report of `targets` (none = the latest run here); -> 1 when the job ran out of memory, else 0."""
    targets = targets or [str(LATEST)]
    if (
        output is not None
        and output.exists()
        and any(Path(each).exists() and output.samefile(each) for each in targets)
    ):
        raise OomdocError(f"cannot write {output}: it is what is read")
    if all_logs(targets):
        if gpu is not None or capacity is not None:
            raise OomdocError("--gpu and --capacity judge recordings; the messages of a log name their own card")
        report = analyze_logs(targets)
    else:
        local = [localised(each) for each in targets]
        ranks = ranks_in(Path(local[0])) if len(local) == 1 else None
        diagnosis = diagnose_files(chosen(snapshot_files(local), ranks), gpu, capacity)
        from ..reports.build import build

        report = build(diagnosis, path=" ".join(targets), next_commands=_next(targets, diagnosis), ranks=ranks)
        report = replace(report, cards=tuple(card for each in local for card in cards_in(Path(each))))
    emit(report, form, output)
    return int(report.verdict.out_of_memory)


def _next(targets: Sequence[str], diagnosis: "Diagnosis") -> tuple[str, ...]:
    commands = []
    if diagnosis.findings:
        commands.append(f"oomdoc explain {diagnosis.findings[0].code}")
    if diagnosis.profile.devices:
        commands.append(shlex.join(["oomdoc", "plan", *targets[:1]]))
    return tuple(commands)
