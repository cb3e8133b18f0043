"""What one frame says."""

import pytest
from oomdoc.diagnosers.attribution.signs import Sign, is_library_file, signs_of
from oomdoc.diagnosers.attribution.stacks import outermost_user_location, read_stacks, user_location
from oomdoc.snapshots.model import Frame, Stacks

SITE = "/venv/lib/python3.12/site-packages/torch/"


@pytest.mark.parametrize(
    ("frame", "sign"),
    [
        (Frame(SITE + "optim/adamw.py", 243, "_multi_tensor_adamw"), Sign.OPTIMIZER),
        (Frame(SITE + "optim/adam.py", 150, "_init_group"), Sign.OPTIMIZER),
        (Frame("/home/me/my_optimizer.py", 71, "step"), Sign.OPTIMIZER),
        (Frame(SITE + "optim/optimizer.py", 500, "profile_hook_step"), Sign.OPTIMIZER),
        (Frame(SITE + "optim/optimizer.py", 493, "wrapper"), Sign.OPTIMIZER),  # around a step in any file
        (Frame(SITE + "optim/optimizer.py", 1066, "zero_grad"), Sign.ZERO_GRAD),
        (Frame("??", 0, "torch::autograd::Engine::thread_main(...)"), Sign.ENGINE),
        (Frame("??", 0, "torch::autograd::AccumulateGrad::apply(...)"), Sign.ACCUMULATE),
        (Frame(SITE + "autograd/graph.py", 829, "_engine_run_backward"), Sign.ENGINE),
        (Frame(SITE + "nn/modules/module.py", 942, "_apply"), Sign.MODULE_MOVE),
        (Frame(SITE + "nn/modules/module.py", 1787, "_call_impl"), Sign.FORWARD),
        (Frame("", 0, "at::cuda::getNewWorkspace()"), Sign.CUBLAS),
        (Frame("??", 0, "at::autocast::cached_cast(...)"), Sign.CAST),
        (Frame("C:\\p\\nn_utils.py", 17, "cross_entropy"), Sign.LOSS),
        (Frame("/tmp/x/model.py", 7, "softmax"), Sign.SOFTMAX),
    ],
)
def test_a_frame_carries_its_sign(frame: Frame, sign: int) -> None:
    assert signs_of(frame) & sign


@pytest.mark.parametrize(
    ("frame", "sign"),
    [
        (Frame("/home/me/train.py", 12, "step"), Sign.OPTIMIZER),  # a training loop's own step
        (Frame(SITE + "optim/lr_scheduler.py", 130, "wrapper"), Sign.OPTIMIZER),
        (Frame(SITE + "optim/lr_scheduler.py", 80, "step"), Sign.OPTIMIZER),
        (Frame("/home/me/benchmarking_script.py", 65, "benchmark_forward"), Sign.TUNING),
        # a graph that Python drops has generated nodes on its stack, but the engine does not run
        (Frame("??", 0, "torch::autograd::generated::ViewBackward0::~ViewBackward0()"), Sign.ENGINE),
    ],
)
def test_a_look_alike_does_not(frame: Frame, sign: int) -> None:
    assert not signs_of(frame) & sign


@pytest.mark.parametrize(
    ("path", "library"),
    [
        ("/venv/lib/python3.12/site-packages/transformers/models/opt/modeling_opt.py", True),
        ("/usr/lib/python3.11/contextlib.py", True),
        ("C:\\Users\\me\\uv\\python\\cpython-3.10.19-windows-x86_64-none\\lib\\copy.py", True),
        ("/tmp/torchinductor_me/3u/c3uxhj5q2ablsqp5lrlrkd2ig2tub4do54ysdazmtvawnjje2knd.py", True),
        ("/home/me/lib/model.py", False),
        ("C:\\research\\DeComFL\\client.py", False),
        ("/workspace/train.py", False),
    ],
)
def test_user_code_and_libraries_are_told_apart(path: str, library: bool) -> None:
    assert is_library_file(path) is library


def test_a_forward_below_the_engine_is_recomputation_and_a_backward_below_a_forward_is_not() -> None:
    engine = Frame(SITE + "autograd/graph.py", 829, "_engine_run_backward")
    forward = Frame("/w/model.py", 3, "forward")
    stacks = Stacks(frames=(engine, forward), stacks=((1, 0), (0, 1)))
    recomputed, penalty = read_stacks(stacks).signs[:2]
    assert recomputed & Sign.RECOMPUTE
    assert not penalty & Sign.RECOMPUTE


def test_the_last_line_of_module_apply_moves_buffers() -> None:
    """Parameters are moved on one line, buffers on one below it; what an RNN's own _apply makes is neither."""
    child = Frame(SITE + "nn/modules/module.py", 933, "_apply")
    parameter = Frame(SITE + "nn/modules/module.py", 964, "_apply")
    buffer = Frame(SITE + "nn/modules/module.py", 1034, "_apply")
    flattened = Frame(SITE + "nn/modules/rnn.py", 300, "_apply")
    frames = (child, parameter, buffer, flattened)
    signs = read_stacks(Stacks(frames=frames, stacks=((1, 0), (2, 0), (3, 0)))).signs[:3]
    assert [bool(each & Sign.BUFFER) for each in signs] == [False, True, False]
    alone = read_stacks(Stacks(frames=frames, stacks=((1, 0), (3, 0)))).signs[:2]
    assert [bool(each & Sign.BUFFER) for each in alone] == [False, False]


def test_a_function_named_for_a_cache_that_calls_the_model_is_none() -> None:
    update = Frame("/venv/lib/python3.12/site-packages/transformers/cache_utils.py", 119, "update")
    forward = Frame("/w/model.py", 3, "forward")
    generate = Frame("/w/serve.py", 9, "generate_with_kv_cache")
    stacks = Stacks(frames=(update, forward, generate), stacks=((0, 1, 2), (1, 2)))
    cached, activation = read_stacks(stacks).signs[:2]
    assert cached & Sign.KV_CACHE
    assert not activation & Sign.KV_CACHE


def test_the_innermost_and_the_outermost_user_line() -> None:
    frames = (
        Frame(SITE + "nn/functional.py", 10, "linear"),
        Frame("/w/model.py", 5, "forward"),
        Frame(SITE + "nn/modules/module.py", 1787, "_call_impl"),
        Frame("/w/train.py", 20, "train"),
        Frame("/w/train.py", 30, "<module>"),
    )
    inner, outer = user_location(frames), outermost_user_location(frames)
    assert inner is not None
    assert outer is not None
    assert (inner.file, inner.line) == ("/w/model.py", 5)
    assert (outer.file, outer.line) == ("/w/train.py", 20)
