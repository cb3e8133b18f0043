"""`oomdoc.load`, `oomdoc.analyze`, `oomdoc.plan`: read a recording, diagnose it, plan from it; results are objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..snapshots.model import Snapshot
from .files import load as load_files
from .files import ranks_of, snapshot_files

if TYPE_CHECKING:
    from ..diagnosers.interface import DeviceProfile, Finding
    from ..remedies.interface import Candidate
    from ..reports.model import Report

Source = str | PathLike[str] | Snapshot | Sequence[str | PathLike[str]] | Sequence[Snapshot]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The diagnosis of a job, with the plan where one was asked for.

    Printed, it is the terminal report; in a notebook it is shown as Markdown.
    """

    report: "Report"

    @property
    def out_of_memory(self) -> bool:
        return self.report.verdict.out_of_memory

    @property
    def summary(self) -> str:
        """The verdict in one or two sentences."""
        return self.report.verdict.summary

    @property
    def devices(self) -> "tuple[DeviceProfile, ...]":
        """What every device of every rank held at its peak, or when memory ran out."""
        return self.report.diagnosis.profile.devices

    @property
    def peak_bytes(self) -> int | None:
        """The highest `max_memory_allocated` of any device; None where a recording does not tell it."""
        peaks = [device.peak.allocated_bytes for device in self.devices]
        known = [peak for peak in peaks if peak is not None]
        return max(known) if known and len(known) == len(peaks) else None

    @property
    def categories(self) -> Mapping[str, int]:
        """Live bytes by category on the device that the verdict is of, largest first."""
        verdict = self.report.verdict
        for device in self.devices:
            if (device.rank, device.device) == (verdict.rank, verdict.device):
                held = {category.value: each.bytes for category, each in device.categories.items() if each.bytes}
                return dict(sorted(held.items(), key=lambda item: -item[1]))
        return {}

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """The causes, what an expert would say first coming first."""
        return self.report.diagnosis.findings

    @property
    def remedies(self) -> "tuple[Candidate, ...]":
        """The ranked changes of `oomdoc.plan`; empty after `oomdoc.analyze`."""
        return self.report.plan.candidates if self.report.plan else ()

    def to_dict(self) -> dict[str, Any]:
        """The stable contract `oomdoc.report/1`."""
        from ..reports.json import to_dict

        return to_dict(self.report)

    def render(self, form: str = "terminal") -> str | bytes:
        """The report as `--format` writes it: terminal, json, markdown, html, sarif, junit, ... (some are bytes)."""
        from ..errors import OomdocError
        from ..reports.all_formats import RENDERERS

        if form not in RENDERERS:
            raise OomdocError(f"there is no format {form!r}: {', '.join(RENDERERS)}")
        return RENDERERS[form](self.report)

    def __str__(self) -> str:
        from ..reports import terminal

        return terminal.render(self.report).rstrip()

    def __repr__(self) -> str:
        return f"<oomdoc.Analysis: {self.summary}>"

    def _repr_markdown_(self) -> str:
        from ..reports import markdown

        return markdown.render(self.report)


def load(source: Source) -> tuple[Snapshot, ...]:
    """The snapshots of a file, of several, or of a run directory; one for each rank.

    Nothing in a file is executed. Raises UnreadableInputError for what is no snapshot.
    """
    return tuple(_snapshots(source)[0])


def analyze(source: Source, *, gpu: str | None = None, capacity: str | None = None) -> Analysis:
    """What holds the memory, by cause and by line of code.

    `gpu` (a name such as "h100-80gb") or `capacity` ("24GiB") judge the recording against another card.
    """
    return _analysis(source, gpu, capacity, planned=False)


def plan(source: Source, *, gpu: str | None = None, capacity: str | None = None) -> Analysis:
    """The same, with the changes that would make the job fit (`remedies`), as estimated from the recording."""
    return _analysis(source, gpu, capacity, planned=True)


def _analysis(source: Source, gpu: str | None, capacity: str | None, *, planned: bool) -> Analysis:
    from ..diagnosers.diagnose import diagnose
    from ..remedies.planner import plan as make
    from ..reports.build import build
    from .pipeline import job_of, profile_snapshots

    snapshots, ranks, told = _snapshots(source)
    diagnosis = diagnose(profile_snapshots(snapshots, ranks, gpu, capacity))
    made = make(diagnosis.profile, job_of(diagnosis.profile, gpu)) if planned else None
    return Analysis(build(diagnosis, path=told, plan=made))


def _snapshots(source: Source) -> tuple[list[Snapshot], list[int] | None, str]:
    """Snapshots, the ranks that file names tell, and what to call them."""
    if isinstance(source, Snapshot):
        return [source], None, "this process"
    if isinstance(source, str | PathLike):
        files = snapshot_files([str(source)])
        return load_files(files), ranks_of(files), str(source)
    items = list(source)
    ready = [each for each in items if isinstance(each, Snapshot)]
    if len(ready) == len(items) and ready:
        return ready, None, "this process"
    files = [Path(path) for path in snapshot_files([str(each) for each in items if not isinstance(each, Snapshot)])]
    return load_files(files), ranks_of(files), " ".join(map(str, files))
