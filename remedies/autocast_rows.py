"""What torch.autocast does to each allocation of a forward that was recorded in float32.

From the operation lists of torch/amp (autocast_mode.h): products (linear, conv, matmul, attention) run in the lower
type, norms, softmax and losses in float32, everything else follows its inputs. Which of them made a row is read from
the class of the module it was born in, else from the source line, else left open.
"""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..snapshots.model import Frame, Stacks
from .autocast_kinds import Kind
from .autocast_types import resolved
from .passes import Iteration, activation_rows
from .structure.sources import source_line
from .whatif_timeline import Timeline

_PRODUCT = re.compile(r"^(Linear|Conv(Transpose)?[123]d|Conv1D|Bilinear|NonDynamicallyQuantizableLinear|.*Linear)$")
_NORM = re.compile(r"(Layer|RMS|Group|T5Layer)Norm|RMSNorm|LayerNorm", re.IGNORECASE)
_FLOAT32 = re.compile(r"^(Softmax|LogSoftmax|.*Loss|.*Embedding|.*EmbeddingBag|Softplus|CosineSimilarity|Upsample.*)$")
_PRODUCT_CALL = re.compile(
    r"scaled_dot_product|matmul|einsum|\bbmm\b|baddbmm|\blinear\(|\bconv[123]d\(|_in_projection|attention_interface|\s@\s"
)
_WEIGHTS_CALL = re.compile(  # a product with a parameter, where the module does not call another one for it
    r"\blinear\(|\bconv(_transpose)?[123]d\(|_in_projection|\s@\sself\.|(matmul|einsum|mm)\([^)]*self\."
)
_FOLLOWING_CALL = re.compile(
    r"\b(relu|gelu|silu|tanh|sigmoid|dropout|hardtanh|leaky_relu|elu|mish)_?\(|activation\(|act_fn\("
)
_FLOAT32_CALL = re.compile(
    r"softmax|(layer|rms|group)_norm|interpolate\(|upsample|cross_entropy|nll_loss|\.float\(\)|torch\.float32|rsqrt|\bpow\("
)
_JOINING_CALL = re.compile(r"\b(cat|concat|concatenate|stack)\(")
_SUM = re.compile(r"\S\s\+\s\S|\S\s\+=|\.add\(")
_FLOAT32_NAMES = {
    "interpolate",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "nll_loss",
    "layer_norm",
    "rms_norm",
    "group_norm",
}
TORCH = re.compile(r"(^|/)torch/(nn|_|functional)")
_CALLS = {"_call_impl", "_wrapped_call_impl"}


def kinds_of(timeline: Timeline, class_of: Mapping[str, str], stacks: Stacks) -> NDArray[np.int8]:
    """Kind of each row, taken as an activation of a float32 forward."""
    parents = _parents(class_of)
    by_module = np.array([_of_class(path, class_of, parents) for path in timeline.modules] + [-1], np.int8)
    kinds = by_module[timeline.module]
    lines: dict[tuple[int, int], Kind] = {}
    own = np.flatnonzero((kinds < 0) | ((kinds == Kind.FOLLOWS) & ~_of_torch(timeline, stacks)))
    for row in own.tolist():
        key = (int(timeline.stack[row]), int(kinds[row]))
        if key not in lines:
            path = timeline.modules[timeline.module[row]] if timeline.module[row] >= 0 else None
            found = _of_line(stacks, key[0], path, class_of)
            # what a line leaves open, the class decides where it has an own forward without modules inside
            lines[key] = Kind.FOLLOWS if key[1] == Kind.FOLLOWS and found == Kind.OPEN_HALF else found
        kinds[row] = lines[key]
    return resolved(timeline, kinds)


def _parents(class_of: Mapping[str, str]) -> set[str]:
    """Paths that have modules inside."""
    found: set[str] = set()
    for path in class_of:
        while "." in path:
            path = path.rpartition(".")[0]
            found.add(path)
    return found


def _of_torch(timeline: Timeline, stacks: Stacks) -> NDArray[np.bool_]:
    """Rows whose innermost Python frame is torch's: there the class says what is computed."""
    torch = [
        next((TORCH.search(f.filename.replace("\\", "/")) is not None for f in stacks.of(i)), False)
        for i in range(len(stacks.stacks))
    ]
    found: NDArray[np.bool_] = np.array([*torch, False], np.bool_)[timeline.stack]
    return found


def _of_class(path: str, class_of: Mapping[str, str], parents: set[str]) -> int:
    """Kind by the class of a module without children; -1 for one that computes in its own forward."""
    name = class_of.get(path)
    if name is None or name.startswith("?") or path in parents:
        return -1
    if _NORM.search(name) and not name.startswith(("BatchNorm", "SyncBatchNorm", "InstanceNorm")):
        return Kind.NORM
    if _FLOAT32.match(name):
        return Kind.KEEPS
    if _PRODUCT.match(name):
        return Kind.PRODUCT
    return Kind.HALVES if "Attention" in name else Kind.FOLLOWS


def _of_line(stacks: Stacks, stack: int, path: str | None, class_of: Mapping[str, str]) -> Kind:
    normed = path is not None and any(
        _NORM.search(name) for each, name in class_of.items() if each.rpartition(".")[0] == path or path not in class_of
    )
    for frame in stacks.of(stack)[:6]:
        if frame.name in _CALLS:
            break  # from here on it is another module's code
        if frame.name in _FLOAT32_NAMES:
            return Kind.KEEPS
        found = _of_text(source_line(frame), normed)
        if found is not None:
            return found
    return Kind.OPEN_KEEP if normed else Kind.OPEN_HALF


def _of_text(text: str, normed: bool) -> Kind | None:
    """What one source line says; a sum in a module with norms is its residual stream."""
    if normed and _SUM.search(text):
        return Kind.SUMS
    if _FLOAT32_CALL.search(text):
        return Kind.KEEPS
    if "scaled_dot_product" in text:
        return Kind.ATTENTION
    if _WEIGHTS_CALL.search(text):
        return Kind.PRODUCT
    if _PRODUCT_CALL.search(text):
        return Kind.HALVES
    if _JOINING_CALL.search(text):
        return Kind.JOINS
    if _FOLLOWING_CALL.search(text):
        return Kind.FOLLOWS
    return None


def last_product(timeline: Timeline, kinds: NDArray[np.int8], iteration: Iteration) -> int:
    """The row that the last product of a forward made: the logits. -1 = none."""
    inside = activation_rows(timeline) & (kinds == Kind.PRODUCT)
    inside &= (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
    rows = np.flatnonzero(inside)
    return int(rows[timeline.birth[rows].argmax()]) if len(rows) else -1


def casts_itself(stacks: Stacks, stack: int) -> bool:
    """Whether the line that made something casts to float32, whatever type the model has."""
    return any(re.search(r"\.float\(\)|torch\.float32|float32\)", source_line(f)) for f in stacks.of(stack)[:3])


def upcasts(stacks: Stacks, stack: int) -> bool:
    """Whether a function on the stack casts to float32 before the line it has come to (`logits.float()`)."""
    for frame in stacks.of(stack):
        if "/torch/" in frame.filename or frame.line <= 0:
            continue
        for line in range(frame.line, max(0, frame.line - 60), -1):
            text = source_line(Frame(frame.filename, line, frame.name))
            if re.search(r"\.float\(\)|torch\.float32|upcast", text):
                return True
            if re.match(r"\s*def ", text):
                break
    return False
