"""Private names of torch stand in one file, whose self-test says what a new torch does otherwise."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from oomdoc.errors import OomdocError
from oomdoc.recorders.virtual import fastmeta, private
from oomdoc.recorders.virtual.session import virtual_session

from .conftest import A100_LIKE

ROOM = Path(private.__file__).parent
FILES = sorted(path for path in ROOM.glob("*.py") if path.name != "private.py")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def named(tree: ast.AST) -> Iterator[str]:
    """What is imported from torch, and read below the name `torch`, with its whole path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] == "torch")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            path = ast.unparse(node)
            if path.startswith("torch.") and path.replace(".", "").replace("_", "").isalnum():
                yield path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_one_file_names_what_torch_keeps_private(path: Path) -> None:
    """Operators (`torch.ops`) are named as torch's own schemas do; what a shim puts in place, it sets."""
    found = {name for name in named(ast.parse(path.read_text("utf-8"))) if not name.startswith("torch.ops.")}
    assert [name for name in sorted(found) if any(map(is_private, name.split(".")))] == []


def test_all_of_them_are_there_and_do_what_they_did() -> None:
    assert private.problems() == ()


def test_a_name_that_is_missing_is_said_before_anything_runs() -> None:
    gone = private._named("_C._no_such_name")
    try:
        with pytest.raises(NotImplementedError, match="no_such_name"):
            gone.deeper()
        with (
            pytest.raises(OomdocError, match=r"lacks torch\._C\._no_such_name[\s\S]*--real"),
            virtual_session(A100_LIKE),
        ):
            pass
    finally:
        private._missing.clear()
    assert private._named("_C._no_such_name", instead=3) == 3


def test_one_that_changed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "sequence_number", lambda: 0)
    assert private.problems() == ("torch._C._autograd._get_sequence_nr does not do what it did",)


def test_without_the_library_of_meta_kernels_torchs_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastmeta, "meta_registrations", lambda: None)
    with virtual_session(A100_LIKE):
        x = torch.zeros(64, 64, device="cuda", requires_grad=True)
        torch.nn.functional.layer_norm(x @ x, (64,)).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape
        assert torch.cuda.memory_allocated() >= 2 * 64 * 64 * 4
