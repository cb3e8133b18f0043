"""Everything of the virtual GPU that is not the tracker's: the script's view of it, in the order it is put on."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from . import (
    compiled,
    cuda_module,
    data_parallel,
    distributed,
    face,
    factories,
    flex,
    generators,
    graphs,
    hostside,
    known_extensions,
    legacy,
    loading,
    missing_kernels,
    older_torch,
    saving,
    storage_face,
    streams,
    taught,
    threads,
)

if TYPE_CHECKING:
    from .session import Session

SHIMS: "tuple[Callable[[Session], AbstractContextManager[None]], ...]" = (
    streams.install,
    cuda_module.install,
    data_parallel.install,
    graphs.install,
    compiled.install,
    flex.install,
    face.install,
    hostside.install,
    storage_face.install,
    saving.install,
    loading.install,
    legacy.install,
    older_torch.install,
    missing_kernels.install,
    generators.install,
    factories.install,
    distributed.install,
    threads.install,
    known_extensions.install,
    taught.install,
)
