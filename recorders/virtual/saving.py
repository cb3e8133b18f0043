"""Checkpoints of tensors without values: files of the right structure and size, with holes where the data would be.

`torch.save` and `safetensors` write them; they read back as zeros, here or anywhere, so that a job which saves and
resumes runs on. A hole takes no disk space.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .host import real_zeros
from .patching import Patches, patches
from .private import raw_is_meta
from .storage_face import is_valueless

if TYPE_CHECKING:
    from .session import Session

# names of dtypes in a safetensors header: https://huggingface.co/docs/safetensors, "Format"
SAFETENSORS_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


class _HoleWriter:
    """PyTorchFileWriter that leaves room for a storage without values instead of reading it."""

    def __init__(self, writer: Any, to_file: bool) -> None:
        self._writer = writer
        self._to_file = to_file

    def write_record(self, name: str, data: Any, size: int) -> None:
        if not (isinstance(data, torch.UntypedStorage) and is_valueless(data)):
            self._writer.write_record(name, data, size)
        elif self._to_file:
            self._writer.write_record_metadata(name, size)
        else:  # a stream of the script's, which has to get its bytes
            self._writer.write_record(name, real_zeros((size,), torch.uint8).untyped_storage(), size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def _zip_save(original: Callable[..., None], files: set[int]) -> Callable[..., None]:
    def save(obj: Any, zip_file: Any, *args: Any, **kwargs: Any) -> None:
        original(obj, _HoleWriter(zip_file, id(zip_file) in files), *args, **kwargs)

    return save


def _opened(original: Any, files: set[int]) -> type:
    class _Writer(original):  # type: ignore[misc]  # a class that is only known at run time
        """Remembers the writers that write to a file by its name."""

        def __enter__(self) -> Any:
            writer = super().__enter__()
            files.add(id(writer))
            return writer

        def __exit__(self, *error: Any) -> None:
            files.discard(id(self.file_like))
            super().__exit__(*error)

    return _Writer


def _safetensors_save(module: Any) -> Callable[..., None]:
    original: Callable[..., None] = module.save_file

    def save_file(tensors: Mapping[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        if not any(raw_is_meta(tensor) for tensor in tensors.values()):
            original(tensors, filename, metadata)
            return
        shared = [names for names in module._find_shared_tensors(tensors) if len(names) > 1]
        if shared:
            raise RuntimeError(
                f"Some tensors share memory, this will lead to duplicate memory on disk and potential differences when "
                f"loading them again: {shared}. A potential way to correctly save your model is to use `save_model`."
            )
        write_safetensors(tensors, filename, metadata)

    return save_file


def write_safetensors(tensors: Mapping[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
    """A safetensors file of `tensors`; those without values are holes."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    for name, tensor in ordered:
        if not tensor.is_contiguous():
            raise ValueError(f"You are trying to save a non contiguous tensor: `{name}` which is not allowed.")
        end = offset + tensor.numel() * tensor.element_size()
        dtype = SAFETENSORS_NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.fspath(filename), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            if raw_is_meta(tensor):
                file.seek(tensor.numel() * tensor.element_size(), os.SEEK_CUR)
            else:
                file.write(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        file.truncate(8 + len(text) + offset)


def _patch_safetensors(held: Patches) -> None:
    try:
        import safetensors.torch as module
    except ImportError:  # not installed: nothing of the script can save with it
        return
    held.swap_everywhere([(module.save_file, _safetensors_save(module))], roots=("safetensors",))


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """torch.save and safetensors for the time of the block."""
    serialization: Any = torch.serialization
    with patches() as held:
        files: set[int] = set()
        held.set(serialization, "_save", _zip_save(serialization._save, files))
        by_name = serialization._open_zipfile_writer_file
        held.set(serialization, "_open_zipfile_writer_file", _opened(by_name, files))
        _patch_safetensors(held)
        yield
