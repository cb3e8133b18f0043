"""Threads and forked processes of the script.

Dispatch modes and the autocast key are per thread: a thread started in a session enters what its main thread is in
(`session.thread_contexts`). A forked child (a DataLoader worker) does host work only: it leaves the mode, so that its
tensors are real, and touching CUDA there is the error that it is on a GPU.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .face import Process, canonical_device
from .host import WorkerMode
from .patching import patches
from .private import current_dispatch_mode, pop_dispatch_mode
from .storages import state

if TYPE_CHECKING:
    from .session import Session


class _Current:
    session: "Session | None" = None
    registered = False


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """New threads join the session, forked children leave it, for the time of the block."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def joined(self: Any) -> None:
        if _Current.session is not session:
            bootstrap(self)
            return
        with ExitStack() as stack:
            for enter in session.thread_contexts:
                stack.enter_context(enter())
            bootstrap(self)

    if not _Current.registered:
        os.register_at_fork(after_in_child=_leave_in_child)
        _Current.registered = True
    with patches() as held:
        held.set(threading.Thread, "_bootstrap_inner", joined)
        _Current.session = session
        try:
            yield
        finally:
            _Current.session = None


def _leave_in_child() -> None:
    session, _Current.session = _Current.session, None
    if session is None:
        return
    if current_dispatch_mode() is session.tracker:
        pop_dispatch_mode()
        if state.exotic:
            WorkerMode().__enter__()  # type: ignore[no-untyped-call]  # torch's
    Process.forked = True
    torch.cuda._is_in_bad_fork = lambda: True
    torch.cuda._lazy_init = lambda: canonical_device("cuda") and None
