"""What the name and the file of a frame say. Every frame name that attribution relies on stands in `TABLE`.

Names of frames change between versions of PyTorch: this is the one place to add them. Sources: the Python and C++
stacks of public recordings from torch 2.1 to 2.13, and torch/optim, torch/nn/modules/module.py,
torch/utils/checkpoint.py, torch/distributed/fsdp, torch/csrc/autograd of those versions.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from ...snapshots.model import Frame


class Sign:
    """One bit per thing that a frame can say about the stack that it is in.

    Plain integers: an IntFlag takes microseconds per operation, and each block is asked some twenty times.
    """

    PYTHON = 1 << 0
    ENGINE = 1 << 1  # the autograd engine runs
    ACCUMULATE = 1 << 2  # a gradient is put into .grad
    OPTIMIZER = 1 << 3  # inside an optimizer's step
    OPTIMIZER_INIT = 1 << 4  # an optimizer is being built
    ZERO_GRAD = 1 << 5
    FORWARD = 1 << 6
    MODULE_MOVE = 1 << 7  # Module.to, .cuda, .half: parameters change place
    MODULE_INIT = 1 << 8  # an object is being built
    MODULE_LOAD = 1 << 9  # from_pretrained, load_state_dict
    BUFFER = 1 << 10  # tables that are no parameters: rope, masks
    CAST = 1 << 11  # autocast's cast of an operand
    AUTOCAST_EXIT = 1 << 12
    LOADER = 1 << 13  # a data loader
    CREATION = 1 << 14  # a tensor is made or copied to the device at once: rand, tensor, to
    RECOMPUTE = 1 << 15  # activation checkpointing runs a forward again
    NO_GRAD = 1 << 16  # decorated with no_grad or inference_mode
    CUBLAS = 1 << 17  # a workspace of cuBLAS, cuBLASLt or cuDNN
    COLLECTIVE = 1 << 18  # NCCL, DDP buckets, FSDP's gathered parameters
    SHARD = 1 << 19  # FSDP shards the parameters
    KV_CACHE = 1 << 20
    TUNING = 1 << 21  # a compiler or cuDNN tries kernels
    CLIP = 1 << 22  # gradient clipping
    LOSS = 1 << 23  # cross entropy and its softmax
    SCORES = 1 << 24  # attention
    BACKWARD_FUNCTION = 1 << 25  # a backward written in Python
    LIBRARY = 1 << 26  # not the user's code
    COPY = 1 << 27  # deepcopy
    NATIVE = 1 << 28  # C++ frames were recorded
    SOFTMAX = 1 << 29
    ENTRY = 1 << 30  # where a thread of Python begins
    CONVOLUTION = 1 << 31
    LOAD = 1 << 32  # a checkpoint is read
    SAVE = 1 << 33  # or put together
    RESHARD = 1 << 34  # FSDP drops gathered parameters
    STATE_INIT = 1 << 35  # torch.optim makes the state of a parameter, once
    REPLICATED = 1 << 36  # in the forward of DistributedDataParallel
    LAYER_INIT = 1 << 37  # one of torch's own layers is being built
    PROJECTION = 1 << 38  # the forward of a linear layer
    LOOKUP = 1 << 39  # the forward of an embedding
    RECURRENT = 1 << 40  # the forward of an RNN


_OPTIMIZER_FILE = (
    r"(^|[/\\])optim[/\\](?!lr_scheduler|swa_utils)[^/\\]*$"
    r"|(^|[/\\])[^/\\]*(?<!lr_)(optim|adam|sgd|lamb|lion|adafactor|rmsprop|muon|shampoo|adagrad)[^/\\]*\.py$"
)
# DeepSpeed's ZeRO optimizers are no torch.optim.Optimizer
_ZERO_FILE = r"deepspeed[/\\]runtime[/\\](zero[/\\]stage\w*|bf16_optimizer|fp16[/\\]\w+)\.py$"
_MODULE_FILE = r"torch[/\\]nn[/\\]modules[/\\]module\.py$"


@dataclass(frozen=True, slots=True)
class Entry:
    """A frame whose function name and file both match (whole-string `search`) carries the sign."""

    sign: int  # of Sign
    name: str | None = None
    file: str | None = None
    python: bool | None = None  # only Python frames, only C++ frames, or either


TABLE: tuple[Entry, ...] = (
    # not torch::autograd::generated::…: a graph that Python drops has those on its stack too
    Entry(Sign.ENGINE, r"torch::autograd::(Engine::|python::PythonEngine)", python=False),
    Entry(Sign.ENGINE, r"^_engine_run_backward$", python=True),
    Entry(Sign.ENGINE | Sign.ACCUMULATE, r"AccumulateGrad", python=False),
    Entry(Sign.BACKWARD_FUNCTION, r"^apply$", r"torch[/\\]autograd[/\\]function\.py$", python=True),
    Entry(
        Sign.OPTIMIZER,
        r"^(step|_step|_init_group|_init_state|adam|adamw|sgd|adagrad|rmsprop|adafactor|lion|_?(multi|single)_tensor_\w+|_fused_\w+)$",
        _OPTIMIZER_FILE,
        python=True,
    ),
    Entry(Sign.OPTIMIZER, r"^profile_hook_step$", python=True),
    # what torch puts around the step of every optimizer, of whatever name and file
    Entry(Sign.OPTIMIZER, r"^(wrapper|_use_grad)$", r"(^|[/\\])torch[/\\]optim[/\\]optimizer\.py$", python=True),
    Entry(Sign.OPTIMIZER_INIT, r"^__init__$", _OPTIMIZER_FILE, python=True),
    Entry(Sign.ZERO_GRAD, r"^zero_grad$", python=True),
    Entry(Sign.OPTIMIZER, r"^(step|_optimizer_step)$", _ZERO_FILE, python=True),
    Entry(
        Sign.OPTIMIZER_INIT,
        r"^(__init__|initialize_optimizer_states|_create_fp32_partitions\w*)$",
        _ZERO_FILE,
        python=True,
    ),
    Entry(Sign.ENTRY, r"^(<module>|_run_module_as_main|_run_code|_bootstrap|_bootstrap_inner)$", python=True),
    Entry(Sign.CONVOLUTION, r"^(_conv_forward|conv(_transpose)?[123]d)$", python=True),
    Entry(Sign.FORWARD, r"^(forward|_call_impl|_wrapped_call_impl)$|^torch_dynamo_resume_in_forward", python=True),
    Entry(Sign.RECURRENT, r"^forward$", r"torch[/\\]nn[/\\]modules[/\\]rnn\.py$", python=True),
    Entry(Sign.LOOKUP, r"^forward$", r"torch[/\\]nn[/\\]modules[/\\]sparse\.py$", python=True),
    Entry(Sign.PROJECTION, r"^forward$", r"torch[/\\]nn[/\\]modules[/\\]linear\.py$", python=True),
    Entry(Sign.MODULE_MOVE, r"^(_apply|to|cuda|half|bfloat16|to_empty)$", _MODULE_FILE, python=True),
    Entry(Sign.MODULE_MOVE, r"^(to|cuda)$", r"(modeling_utils|accelerator|big_modeling)\.py$", python=True),
    Entry(Sign.MODULE_INIT, r"^(__init__|reset_parameters)$", python=True),
    Entry(Sign.LAYER_INIT, r"^(__init__|reset_parameters)$", r"torch[/\\]nn[/\\]modules[/\\]", python=True),
    Entry(Sign.MODULE_LOAD, r"^(from_pretrained|_?load_state_dict\w*|_load_from_state_dict)$", python=True),
    Entry(Sign.BUFFER, r"rope|rotary|inv_freq|register_buffer|(^|_)mask($|_)", python=True),
    Entry(Sign.CAST, r"at::autocast::cached_cast", python=False),
    Entry(Sign.CAST, r"^_?cached_cast$", python=True),
    Entry(Sign.AUTOCAST_EXIT, r"^__exit__$", r"autocast_mode\.py$", python=True),
    Entry(Sign.AUTOCAST_EXIT, r"at::autocast::clear_cache", python=False),
    Entry(
        Sign.LOADER,
        r"^(__next__|collate\w*|default_collate|pin_memory|_pin_memory_loop|send_to_device|_prepare_inputs?)$",
        r"(dataloader|collate|pin_memory|data_loader|trainer|operations)\.py$",
        python=True,
    ),
    Entry(
        Sign.CREATION,
        r"THPVariable_(rand|randn|randint|zeros|ones|full|empty|tensor|arange|to|cuda|as_tensor)\b"
        r"|at::(native|_ops)::(_to_copy|rand|randn|randint)\b",
        python=False,
    ),
    Entry(
        Sign.RECOMPUTE,
        r"^(unpack_hook|recompute_fn|_checkpoint_without_reentrant\w*)$",
        r"checkpoint\.py$",
        python=True,
    ),
    Entry(Sign.NO_GRAD, r"^decorate_context$", r"_contextlib\.py$", python=True),
    Entry(
        Sign.CUBLAS,
        r"getNewWorkspace|getCurrentCUDABlasHandle|LtWorkspace|getCUDABlasLtWorkspace|allocate_workspace|run_conv_plan|cudnn.*[Ww]orkspace",
        python=False,
    ),
    Entry(
        Sign.COLLECTIVE,
        r"^(_?broadcast_coalesced|all_?reduce\w*|_{0,2}all_?gather\w*|reduce_scatter\w*|foreach_all_gather\w*|foreach_reduce\w*"
        r"|_?init_all_gather_outputs|alloc_all_gather_outputs|_alloc_padded_unsharded_flat_param|_ddp_init_helper"
        r"|_sync_module_states|reduce_ipg_grads|average_tensor|_?average_and_\w+)$",
        python=True,
    ),
    # DDP rebuilds its buckets in C++ below this line; FSDP pads gradients below the other
    Entry(Sign.COLLECTIVE, r"^_pre_forward$", r"parallel[/\\]distributed\.py$", python=True),
    Entry(Sign.COLLECTIVE, r"^(_post_backward_hook|_reduce_grad)$", r"fsdp[/\\]_runtime_utils\.py$", python=True),
    Entry(Sign.COLLECTIVE, r"c10d::|torch::cuda::broadcast|ncclComm", python=False),
    Entry(
        Sign.SHARD,
        r"^(_init_sharded_param|shard|flatten_tensors\w*|_init_flat_param\w*|fully_shard)$",
        r"fsdp",
        python=True,
    ),
    Entry(Sign.REPLICATED, r"^forward$", r"parallel[/\\]distributed\.py$", python=True),
    Entry(Sign.RESHARD, r"^_?free_(storage|unsharded\w+)$", r"fsdp|fully_shard", python=True),
    Entry(Sign.STATE_INIT, r"^_init_(group|state)$", r"(^|[/\\])torch[/\\]optim[/\\]", python=True),
    Entry(
        Sign.KV_CACHE, r"^(update\w*|lazy_initialization|__init__|reorder_cache)$", r"cache_utils\w*\.py$", python=True
    ),
    Entry(Sign.KV_CACHE, r"kv_cache|_allocate_kv|past_key_value", python=True),
    Entry(Sign.KV_CACHE, r"^(_create_buffers|__init__)$", r"memory_pool\w*\.py$", python=True),
    Entry(
        Sign.TUNING,
        r"get_empty_cache_for_benchmark|^(benchmark\w*|do_bench\w*|autotune\w*)$",
        r"_inductor[/\\]|triton[/\\]",
        python=True,
    ),
    Entry(Sign.TUNING, r"try_configs|try_plans", python=False),
    Entry(
        Sign.CLIP,
        r"^(clip_grad_norm_?|clip_grad_value_?|_?get_total_norm|clip_grads_with_norm_|unscale_|_unscale_grads_)$",
        python=True,
    ),
    Entry(
        Sign.LOSS,
        r"cross_entropy|^(nll_loss|log_softmax|ForCausalLMLoss|fixed_cross_entropy|LigerForCausalLMLoss)$",
        python=True,
    ),
    Entry(Sign.LOSS, r"at::(native|_ops)::(cross_entropy_loss|_?log_softmax|nll_loss)", python=False),
    Entry(Sign.SCORES, r"attention|^sdpa|attn", python=True),
    Entry(Sign.SCORES, file=r"(attention|attn|sdpa)[^/\\]*\.py$", python=True),
    Entry(Sign.SOFTMAX, r"(^|_)softmax$", python=True),
    Entry(Sign.SOFTMAX, r"^forward$", r"softmax\.py$", python=True),
    Entry(Sign.SOFTMAX, r"at::(native|_ops)::_?softmax|_scaled_dot_product_attention_math", python=False),
    Entry(Sign.SCORES, r"scaled_dot_product_attention|at::native::.*attention", python=False),
    Entry(Sign.LOAD, r"^(load|_load|_legacy_load)$", r"torch[/\\]serialization\.py$", python=True),
    Entry(
        Sign.LOAD,
        r"^_?(load_state_dict|load_checkpoint|load_optimizer|set_(model|optimizer)_state_dict)\w*$",
        python=True,
    ),
    Entry(
        Sign.SAVE,
        r"^_?(state_dict|full_tensor|summon_full_params|get_(model|optimizer)?_?state_dict|save_checkpoint|save_model)$"
        r"|full_state_dict|_gather_state_dict",
        python=True,
    ),
    Entry(Sign.COPY, r"^_{0,2}deepcopy(_{2}|_\w+)?$", python=True),
)

_PYTHON_FILE = re.compile(r"\.pyw?$|^<(stdin|ipython-input.*|string|frozen .*|eval_with_key.*)>$")
_LIBRARY_FILE = re.compile(
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[^/\\]*[/\\]|python[^/\\]*[/\\][Ll]ib[/\\]"
    r"|^<frozen |^<string>$|^<eval_with_key"
    r"|[/\\]torch[/\\](nn|optim|autograd|utils|cuda|distributed|_dynamo|_functorch|_inductor|amp|_ops|fx)[/\\.]"
    r"|[/\\]torch[/\\]\w+\.py$|[/\\]torchinductor_|^torch[/\\]|[/\\]c[a-z0-9]{40,}\.py$"
    r"|[/\\]oomdoc[/\\]recorders[/\\]"
)
_TORCH_FILE = re.compile(
    r"(^|[/\\])torch[/\\]|^<|contextlib\.py$|torchinductor_|[/\\]c[a-z0-9]{40,}\.py$|[/\\]recorders[/\\]"
)


def is_python(frame: Frame) -> bool:
    """A line of Python, as opposed to C++ symbols and the interpreter's own C files."""
    return bool(_PYTHON_FILE.search(frame.filename))


@lru_cache(maxsize=4096)
def is_library_file(filename: str) -> bool:
    """Installed packages, the standard library and generated code, as opposed to the user's own files."""
    return bool(_LIBRARY_FILE.search(filename))


@lru_cache(maxsize=4096)
def is_torch_file(filename: str) -> bool:
    return bool(_TORCH_FILE.search(filename))


@cache
def _compiled() -> tuple[tuple[int, re.Pattern[str] | None, re.Pattern[str] | None, bool | None], ...]:
    """Once they are asked for: what reads no snapshot (a log) starts without them."""
    return tuple(
        (
            entry.sign,
            re.compile(entry.name) if entry.name else None,
            re.compile(entry.file) if entry.file else None,
            entry.python,
        )
        for entry in TABLE
    )


@lru_cache(maxsize=1 << 16)
def signs_of(frame: Frame) -> int:
    """All signs of one frame, as bits of `Sign`."""
    python = is_python(frame)
    found = Sign.PYTHON if python else Sign.NATIVE
    if python and is_library_file(frame.filename):
        found |= Sign.LIBRARY
    for sign, name, file, only_python in _compiled():
        if only_python is not None and only_python != python:
            continue
        if name is not None and not name.search(frame.name):
            continue
        if file is not None and not file.search(frame.filename):
            continue
        found |= sign
    return found
