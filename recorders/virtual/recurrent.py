"""LSTM, GRU and RNN as cuDNN runs them: one operation over all steps and layers, one flat weight, one reserve.

On `meta` torch unrolls the steps. The outputs and the flat weight are exact (aten/src/ATen/native/cudnn/RNN.cpp); cuDNN
does not publish the size of the reserve that forward keeps for backward, nor of its workspace: they are taken to hold
what backward needs per step, layer and direction (gates, cell, output), and marked as estimates.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.backends.cudnn import rnn as cudnn_rnn

from .patching import patches
from .private import open_composite, raw_storage, register_kernels
from .scratch import Args, Arguments, Kwargs, Scratch, Target
from .storages import is_virtual

if TYPE_CHECKING:
    from .session import Session
    from .tracker import Tracker

RESERVE = "cuDNN RNN reserve (not published; gates, cell and output of every step, layer and direction are assumed)"
WORKSPACE = "cuDNN RNN workspace (not published; the gates of one layer are assumed)"
_aten = torch.ops.aten
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_RELU, _TANH, _LSTM, _GRU = range(4)  # cudnnRNNMode_t
_MODES = {"RNN_RELU": _RELU, "RNN_TANH": _TANH, "LSTM": _LSTM, "GRU": _GRU}
_GATES = {_RELU: 1, _TANH: 1, _LSTM: 4, _GRU: 3}
_KEPT_PER_UNIT = {_RELU: 2, _TANH: 2, _LSTM: 6, _GRU: 5}  # gates; cell (LSTM) or candidate's own part (GRU); output


def _padded(mode: int, op: Any, x: torch.Tensor, hidden: Any, params: Sequence[torch.Tensor], *rest: Any) -> Any:
    """`lstm.input` and its like; rest: has_biases, layers, dropout, train, bidirectional, batch_first."""
    if not is_virtual(x) or x.dtype not in _DTYPES:
        return open_composite(op, x, hidden, params, *rest)
    biases, layers, dropout, train, bidirectional, batch_first = rest
    return _run(mode, x, hidden, params, biases, layers, batch_first, dropout, train, bidirectional, ())


def _packed(
    mode: int,
    op: Any,
    x: torch.Tensor,
    batch_sizes: torch.Tensor,
    hidden: Any,
    params: Sequence[torch.Tensor],
    *rest: Any,
) -> Any:
    """`lstm.data` and its like, for packed sequences; rest: has_biases, layers, dropout, train, bidirectional."""
    if not is_virtual(x) or x.dtype not in _DTYPES:
        return open_composite(op, x, batch_sizes, hidden, params, *rest)
    biases, layers, dropout, train, bidirectional = rest
    sizes = tuple(batch_sizes.tolist())
    return _run(mode, x, hidden, params, biases, layers, False, dropout, train, bidirectional, sizes)


def _run(
    mode: int,
    x: torch.Tensor,
    hidden: Any,
    params: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: tuple[int, ...],
) -> Any:
    hx, cx = (hidden[0], hidden[1]) if mode == _LSTM else (hidden, None)
    size = (hx if cx is None else cx).shape[2]
    projected = hx.shape[2] if cx is not None and hx.shape[2] != size else 0
    if torch.is_autocast_enabled("cuda"):  # _cudnn_rnn_cast_reflatten: half inputs, and the weights once more in half
        low = torch.get_autocast_dtype("cuda")
        x, hx, cx = x.to(low), hx.to(low), None if cx is None else cx.to(low)
        params = [p.to(low) for p in params]
        flat = None
    else:
        flat = _flat_weight(params)
    stride = (4 if biases else 2) + (1 if projected else 0)
    out, hy, cy, *_ = _aten._cudnn_rnn.default(
        x, list(params), stride, flat, hx, cx, mode, size, projected, layers, batch_first, dropout, train,
        bidirectional, list(batch_sizes), None,
    )  # fmt: skip
    return (out, hy, cy) if mode == _LSTM else (out, hy)


def _flat_weight(params: Sequence[torch.Tensor]) -> torch.Tensor:
    """The one buffer that the parameters are views of; a copy of all of them where they are not."""
    total = sum(p.numel() for p in params)
    storages = {raw_storage(p)._cdata for p in params}
    first = params[0].detach()
    if len(storages) == 1 and raw_storage(first).nbytes() == total * first.element_size():
        return first.as_strided((total,), (1,), 0)
    return first.new_empty(total)


def flatten_weight(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`flatten_parameters`: the parameters become views of one buffer, their own storages go."""
    params: list[torch.Tensor] = list(args[0])

    def run() -> torch.Tensor:
        flat = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device)
        place = 0
        for parameter in params:
            shape, n = parameter.shape, parameter.numel()
            parameter.set_(flat.narrow(0, place, n).view(shape))  # type: ignore[call-overload]
            place += n
        return flat

    return tracker.reentered(run, (), {})


def forward(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """_cudnn_rnn, with a reserve where it trains."""
    arguments = Arguments(func, args, kwargs)
    reserve = reserve_bytes(arguments) if arguments.get("train") else 0

    def run(*args: Any, **kwargs: Any) -> Any:
        out, hy, cy, _, flat = func(*args, **kwargs)
        flat = torch.empty(0, dtype=args[0].dtype, device="meta") if flat is None else flat
        return out, hy, cy, torch.empty(reserve, dtype=torch.uint8, device="meta"), flat

    result = tracker.call(func, args, kwargs, run=run)
    if reserve:
        tracker.note_estimate(RESERVE, reserve)
        tracker.device.mark_estimated(result[3], (0, 2 * reserve))
    return result


def reserve_bytes(arguments: Arguments) -> int:
    x = arguments.get("input")
    size, layers = arguments.get("hidden_size"), arguments.get("num_layers")
    directions = 2 if arguments.get("bidirectional") else 1
    rows = _steps_times_batch(arguments)
    kept = _KEPT_PER_UNIT[arguments.get("mode")] * size + (size if arguments.get("dropout") else 0)
    return int(rows * layers * directions * kept * x.element_size())


def _steps_times_batch(arguments: Arguments) -> int:
    x = arguments.get("input")
    return int(prod(x.shape[:-1]))


def backward(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """_cudnn_rnn_backward: input and state gradients, and one flat weight gradient that the others are views of."""
    arguments = Arguments(func, args, kwargs)
    mask = arguments.get("output_mask")

    def run(*_: Any, **__: Any) -> Any:
        x, hx, cx, weights = (arguments.get(name) for name in ("input", "hx", "cx", "weight"))
        like = partial(torch.empty_like, memory_format=torch.contiguous_format)
        grads: list[torch.Tensor] = []
        if mask[3]:
            flat = torch.empty(sum(w.numel() for w in weights), dtype=weights[0].dtype, device="meta")
            place = 0
            for weight in weights:
                grads.append(flat.narrow(0, place, weight.numel()).view(weight.shape))
                place += weight.numel()
        return like(x), like(hx), like(cx) if cx is not None else None, grads

    return tracker.call(func, args, kwargs, run=run)


def workspace(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """A time-major copy of a batch-first input, and cuDNN's workspace."""
    arguments = Arguments(func, args, kwargs)
    x = arguments.get("input")
    steps = []
    if arguments.get("batch_first") and not x.transpose(0, 1).is_contiguous():
        copied = x.numel() * x.element_size()
        steps.append(Scratch(bytes=copied, source="time-major copy (ATen/native/cudnn/RNN.cpp)", before=True))
    directions = 2 if arguments.get("bidirectional") else 1
    gates = _GATES[arguments.get("mode")] * arguments.get("hidden_size") * directions
    nbytes = _steps_times_batch(arguments) * gates * x.element_size()
    return [*steps, Scratch(bytes=nbytes, source=WORKSPACE, estimated=True)]


ESTIMATORS = {_aten._cudnn_rnn.default: workspace, _aten._cudnn_rnn_backward.default: workspace}


def kernels() -> dict[str, tuple[Any, Callable[..., Any]]]:
    modes = {"lstm": _LSTM, "gru": _GRU, "rnn_tanh": _TANH, "rnn_relu": _RELU}
    made: dict[str, tuple[Any, Callable[..., Any]]] = {}
    for name, mode in modes.items():
        packet = getattr(_aten, name)
        made[f"{name}.input"] = (packet.input, partial(_padded, mode, packet.input))
        made[f"{name}.data"] = (packet.data, partial(_packed, mode, packet.data))
    return made


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """cuDNN's road for virtual tensors, on AutogradMeta and (under inference_mode) in the tracker."""
    tracker, made = session.tracker, kernels()
    undo = register_kernels("AutogradMeta", {name: kernel for name, (_, kernel) in made.items()})
    for op, kernel in made.values():
        tracker.handlers[op] = partial(_reentered, kernel)
    tracker.handlers[_aten._cudnn_rnn.default] = forward
    tracker.handlers[_aten._cudnn_rnn_backward.default] = backward
    tracker.handlers[_aten._cudnn_rnn_flatten_weight.default] = flatten_weight
    try:
        with patches() as held:
            held.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
            held.set(cudnn_rnn, "get_cudnn_mode", _MODES.__getitem__)
            yield
    finally:
        undo()


def _reentered(kernel: Callable[..., Any], tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    return tracker.reentered(kernel, args, kwargs)
