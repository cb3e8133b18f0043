"""Everything that makes this process believe in a GPU, put on and taken off in order.

`INSTALLERS` is the literal list: each is a context manager of one `Session`; they are entered in this order and left
in reverse, and each leaves the process as it found it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

from ...allocator.config import AllocatorConfig
from ...errors import OomdocError
from ...snapshots import writer
from ...snapshots.model import Snapshot
from ...snapshots.unpickler import collector_paused
from ..batches import Batches
from ..cycles import unreachable
from ..facts import describe
from ..holders import holders
from ..hooks import Hooks
from ..mailbox import Mailbox
from . import (
    autocast,
    composites,
    copies,
    datadependent,
    losses,
    private,
    recording,
    recurrent,
    storages,
    values,
    workspaces,
)
from .device import GpuTarget, VirtualDevice
from .engine import Engine, calibrate
from .fastmeta import fast_meta_kernels
from .host_held import held_on_host
from .roles import Roles
from .shims import SHIMS
from .tracker import Tracker


@dataclass(slots=True, kw_only=True)
class Session:
    """One virtual GPU run in this process: what every part of the room shares."""

    device: VirtualDevice
    tracker: Tracker
    rank: int = 0
    world_size: int = 1
    hooks: Hooks
    batches: Batches = field(default_factory=Batches)
    mailbox: Mailbox = field(default_factory=lambda: Mailbox(0))
    roles: Roles
    thread_contexts: list[Callable[[], AbstractContextManager[object]]] = field(default_factory=list)
    take_snapshot: Callable[[], dict[str, object]] | None = None  # PyTorch's dict, of the events so far
    inputs: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)  # (shape, dtype) from the host: times
    notes: dict[str, int] = field(default_factory=dict)  # fidelity: what was assumed, and how often
    assumed_reads: dict[tuple[str, int], None] = field(default_factory=dict)  # file and line; the last read comes last

    @property
    def target(self) -> GpuTarget:
        return self.device.target

    def snapshot(self, argv: Sequence[str] = (), settings: Mapping[str, object] | None = None) -> Snapshot:
        """What a dump at this moment holds."""
        with collector_paused():  # a collection in between would free tensors: events and blocks would disagree
            self.roles.finish()
            return recording.build(
                self.device,
                self.roles.marks,
                self.hooks.modules,
                argv=argv,
                rank=self.rank,
                world_size=self.world_size,
                facts=self._facts(),
                fidelity=recording.fidelity(self.device, self.notes, self.tracker.estimated),
                settings=settings,
            )

    def _facts(self) -> dict[str, object]:
        hooks = self.hooks
        return {
            **describe(hooks.live_roots(), hooks.live_optimizers(), self.batches.loader),
            "holders": holders(),
            "unreachable": unreachable(),
            "host": held_on_host(hooks.live_roots(), hooks.live_optimizers()),
            "inputs": [{"shape": list(shape), "dtype": dtype, "count": n} for (shape, dtype), n in self.inputs.items()],
            "autocast": hooks.autocast,
            "recomputes": hooks.recomputes,
            "steps": hooks.completed,
            "backwards_per_step": hooks.backwards_per_step,
        }

    def note(self, what: str) -> None:
        """Count an assumption that the report has to name."""
        self.notes[what] = self.notes.get(what, 0) + 1

    def assumed_at(self, file: str, line: int) -> None:
        """The host read a value that nobody computed, and got an assumed one."""
        self.assumed_reads.pop((file, line), None)
        self.assumed_reads[file, line] = None


Installer = Callable[[Session], AbstractContextManager[object]]


@contextmanager
def _checked(session: Session) -> Iterator[None]:
    problems = private.problems()
    if problems:
        raise OomdocError(
            f"torch {torch.__version__} behaves differently from what the virtual GPU needs: {'; '.join(problems)}. "
            f"Tried with {', '.join(private.TRIED_VERSIONS)}: install one of these, or run on a real GPU (--real)."
        )
    yield


@contextmanager
def _storages(session: Session) -> Iterator[None]:
    storages.state.release = session.device.release
    try:
        yield
    finally:
        storages.forget_all()


@contextmanager
def _fast_meta(session: Session) -> Iterator[None]:
    with fast_meta_kernels() as memo:
        session.tracker.memo = memo
        yield


@contextmanager
def _engine(session: Session) -> Iterator[None]:
    session.tracker.engine = Engine(calibrate(), session.roles.at_node)
    yield


@contextmanager
def _hooks(session: Session) -> Iterator[None]:
    with session.hooks.install(), session.batches.install():
        yield


@contextmanager
def _tracking(session: Session) -> Iterator[None]:
    session.thread_contexts.append(lambda: session.tracker)
    with session.tracker:
        yield


# vlib: autocast, composites, values, data-dependent operations, workspaces. vshim: face, torch.cuda, threads, loading.
INSTALLERS: tuple[Installer, ...] = (
    _checked,
    _storages,
    _fast_meta,
    _engine,
    copies.install,
    values.install,
    datadependent.install,
    workspaces.install,
    autocast.install,
    composites.install,
    recurrent.install,
    losses.install,
    *SHIMS,
    _hooks,
    _tracking,  # last: from here on every operation is seen
)


class _Active:
    session: Session | None = None


def active() -> Session | None:
    """The session that is on in this process, if any."""
    return _Active.session


@contextmanager
def virtual_session(
    target: GpuTarget,
    *,
    device_count: int = 1,
    config: AllocatorConfig | None = None,
    rank: int = 0,
    world_size: int = 1,
    steps: int | None = None,
    installers: tuple[Installer, ...] | None = None,
) -> Iterator[Session]:
    """A virtual GPU for everything that runs within. Not reentrant; the process is as before on exit."""
    if _Active.session is not None:
        raise OomdocError("a virtual GPU is on in this process already; leave its session first")
    device = VirtualDevice(target, device_count, config)
    roles = Roles(device)
    roles.hooks = Hooks(roles, steps)
    session = Session(
        device=device, tracker=Tracker(device), rank=rank, world_size=world_size, hooks=roles.hooks, roles=roles
    )
    session.tracker.note = session.note
    session.take_snapshot = lambda: writer.to_dict(session.snapshot())
    with ExitStack() as installed:
        _Active.session = session
        installed.callback(setattr, _Active, "session", None)
        for install in INSTALLERS if installers is None else installers:
            installed.enter_context(install(session))
        yield session
