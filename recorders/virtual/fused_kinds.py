"""Which operations inductor fuses, and how (torch/_inductor/lowering.py)."""

from typing import Any

import torch

# fused like the element-wise ones, without their tag: copies, indirect loads, constants, normalisations
_COPIES = frozenset(
    (
        "_to_copy",
        "_unsafe_view",
        "clone",
        "copy_",
        "cat",
        "stack",
        "fill_",
        "zero_",
        "zeros",
        "ones",
        "full",
        "arange",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "scalar_tensor",
        "embedding",
        "index",
        "index_select",
        "gather",
        "slice_backward",
        "select_backward",
        "constant_pad_nd",
        "flip",
        "roll",
        "repeat",
        "tril",
        "triu",
        "native_dropout",
        "native_dropout_backward",
        "rand",
        "randn",
        "randint",
        "rand_like",
        "randn_like",
        "randint_like",
        "_softmax",
        "_log_softmax",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
        "_safe_softmax",
        "nll_loss_backward",
    )
)
# the first result is element-wise, the others are small reductions
_NORMS = frozenset(
    (
        "native_layer_norm",
        "native_layer_norm_backward",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
    )
)
# read through whatever they are fused with; what they return is in memory
_REDUCTIONS = frozenset(
    (
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "any",
        "all",
        "argmax",
        "argmin",
        "var",
        "std",
        "var_mean",
        "prod",
        "norm",
        "linalg_vector_norm",
        "_foreach_norm",
        "logsumexp",
        "cumsum",
        "count_nonzero",
        "nll_loss_forward",
    )
)
ELEMENTWISE, NORM, REDUCTION, OTHER = range(4)


def kind_of(func: Any) -> int:
    """How the operation `func` is fused: ELEMENTWISE, NORM, REDUCTION or OTHER, which is not at all."""
    name = func._schema.name.split("::")[1]
    if name in _NORMS:
        return NORM
    if name in _REDUCTIONS:
        return REDUCTION
    fused = torch.Tag.pointwise in func.tags or name in _COPIES or name.startswith("_foreach_")
    return ELEMENTWISE if fused else OTHER
