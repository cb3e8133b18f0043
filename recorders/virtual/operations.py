"""What the schema of an operation says, looked up once per operation."""

from typing import Any

import torch

from .engine import PRODUCTS, TRANSFERS
from .fastmeta import Memo
from .private import COMPOSITE_IMPLICIT, cuda_kernel_is_python, has_kernel_for

# namespaces of operators that torch defines itself, whose memory the files here know
_TORCHS = frozenset(("aten", "prim", "prims", "fsdp", "symm_mem", "quantized", "inductor", "inductor_prims"))
_TORCHS |= {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"}


class OpInfo:
    """What the schema says about one operation, looked up once."""

    __slots__ = (
        "breaks_graph",
        "communicates",
        "composite",
        "factory",
        "func",
        "inplace",
        "likeness",
        "may_resize",
        "name",
        "product",
        "python",
        "slow",
        "transfers",
        "view",
    )

    def __init__(self, func: Any, memo: Memo | None = None) -> None:
        self.func = func
        self.transfers = func in TRANSFERS
        self.product = func in PRODUCTS
        self.name: str = func.name()
        # made in the likeness of a tensor, not computed from it
        self.likeness = self.name.endswith("_like") or "::new_" in self.name
        self.communicates = self.name.startswith(("c10d", "_c10d", "fsdp"))
        # torch.compile's defaults capture neither scalar outputs nor sizes that depend on values
        self.breaks_graph = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
        self.view = bool(func.is_view)
        short = func._schema.name.split("::")[1]
        self.inplace = bool(func._schema.is_mutable) and short.endswith("_") and not short.startswith("__")
        arguments = func._schema.arguments
        resizes = short in ("resize_", "resize_as_", "set_") or any(argument.is_out for argument in arguments)
        self.may_resize = bool(func._schema.is_mutable) and resizes
        names = {argument.name for argument in arguments}
        self.factory = {"device", "dtype", "layout"} <= names and short != "_to_copy"
        self.slow = memo is not None and self.name in memo.slow and not func._schema.is_mutable
        self.python = self.name.partition("::")[0] not in _TORCHS and cuda_kernel_is_python(self.name)
        # an operation with a kernel of its own beside the composite one runs that (silu_backward)
        self.composite = has_kernel_for(self.name, COMPOSITE_IMPLICIT) and not has_kernel_for(self.name, "CPU")
