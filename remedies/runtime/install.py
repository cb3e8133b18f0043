"""Apply the remedies of an oomdoc.yaml to the script that is about to run in this process."""

from collections.abc import Sequence
from types import TracebackType

from ..interface import Setting
from .accumulation import GradientAccumulation
from .application import Application, CannotApplyError
from .checkpointing import ActivationCheckpointing
from .evaluation import NoGradEvaluation
from .mixed_precision import MixedPrecision
from .offload import CpuOffload
from .session import Session
from .sharding import Fsdp

# The order in which they act: sharding replaces parameters before anything else looks at them; a micro-batch that
# must not step is decided before a gradient scaler sees the step.
APPLICATIONS: dict[str, type[Application]] = {
    application.name: application
    for application in (
        Fsdp,
        GradientAccumulation,
        MixedPrecision,
        ActivationCheckpointing,
        CpuOffload,
        NoGradEvaluation,
    )
}


class Applied:
    """The remedies at work, until `uninstall()` or the end of the `with` block."""

    def __init__(self, session: Session, settings: tuple[Setting, ...]) -> None:
        self._session = session
        self.settings = settings

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about how they act on this script; grows while it runs."""
        return tuple(self._session.notes)

    def unapplied(self) -> tuple[str, ...]:
        """ "name: reason" for each remedy that has not taken effect so far; ask at the end of the script."""
        return self._session.unapplied()

    def uninstall(self) -> None:
        self._session.stop()

    def __enter__(self) -> "Applied":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.uninstall()


def install(settings: Sequence[Setting], *, world_size: int, device_type: str) -> Applied:
    """Apply `settings` to whatever script runs next in this process.

    `device_type` is "cuda" (a real or a virtual GPU) or "cpu". Raises CannotApplyError when a remedy cannot be
    applied here at all; one that turns out not to fit the script raises it from within the script, before the first
    gradient is used.
    """
    unknown = [setting.name for setting in settings if setting.name not in APPLICATIONS]
    if unknown:
        raise CannotApplyError(
            f"{', '.join(unknown)} cannot be applied at run time (these can: {', '.join(sorted(APPLICATIONS))}). "
            "Type `oomdoc explain` with its name to see what to change in the script."
        )
    if len({setting.name for setting in settings}) < len(settings):
        raise CannotApplyError("a remedy is listed twice under remedies: in oomdoc.yaml; merge the two entries.")
    session = Session(world_size=world_size, device_type=device_type)
    by_name = {setting.name: setting for setting in settings}
    applications = []
    for name, application in APPLICATIONS.items():
        if name in by_name:
            applications.append(application(session, _checked(by_name[name], application)))
    try:
        session.start(applications)
    except BaseException:
        session.stop()
        raise
    return Applied(session, tuple(settings))


def _checked(setting: Setting, application: type[Application]) -> dict[str, object]:
    foreign = sorted(set(setting.options) - application.options)
    if foreign:
        raise CannotApplyError(
            f"{setting.name} has no option {', '.join(foreign)}; it takes {', '.join(sorted(application.options))}."
        )
    return dict(setting.options)
