"""What an export cannot do without."""

from ...diagnosers.interface import DeviceProfile
from ...errors import OomdocError
from ..model import Report


def devices_of(report: Report, form: str) -> tuple[DeviceProfile, ...]:
    """The devices of the report. Raises OomdocError where it has none: a log, or a job that never used the GPU."""
    devices = report.diagnosis.profile.devices
    if devices:
        return devices
    why = "a log has no allocations" if report.log is not None else "no GPU memory was recorded"
    raise OomdocError(f"there is nothing to write as {form}: {why}")
