"""The pytest plugin: GPU memory limits and leak checks of tests, on the virtual GPU.

    @pytest.mark.gpu_memory_limit("8 GiB", gpu="a100-80gb")
    def test_step(): ...

    @pytest.mark.gpu_memory_leak(repetitions=3)
    def test_nothing_is_kept(): ...

    def test_numbers(virtual_gpu):
        ...
        assert virtual_gpu.peak_bytes < 2 << 30

Only tests that ask for it have a virtual GPU, and only then is torch imported.
"""

from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from ..configs.defaults import DEFAULT_GPU

if TYPE_CHECKING:
    from .recording import Recording

LIMIT, LEAK, FIXTURE = "gpu_memory_limit", "gpu_memory_leak", "virtual_gpu"
MARKERS = (
    f'{LIMIT}(size, gpu="{DEFAULT_GPU}", metric="allocated"): the most GPU memory that the test may need, such as '
    '"8 GiB", on a virtual card of that name (oomdoc)',
    f'{LEAK}(repetitions=3, gpu="{DEFAULT_GPU}", tolerance=0): the test runs so many times more; what a repetition '
    "leaves on the GPU fails it (oomdoc)",
)


class VirtualGpu:
    """What the fixture `virtual_gpu` gives: the device to use and its recorder."""

    device = "cuda"

    def __init__(self, name: str, recording: "Recording") -> None:
        self.name = name  # in oomdoc's list of cards
        self.recording = recording

    @property
    def allocated_bytes(self) -> int:
        return self.recording.allocated_bytes

    @property
    def peak_bytes(self) -> int:
        """max_memory_allocated so far."""
        return self.recording.peak_bytes


class _State:
    """Of one test: from before its fixtures are made until after they are gone."""

    def __init__(self, stack: ExitStack, gpu: VirtualGpu) -> None:
        self.stack, self.gpu = stack, gpu


_STATE = pytest.StashKey[_State]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("oomdoc_gpu", f"card of tests with a virtual GPU that name none (default: {DEFAULT_GPU})", default="")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.fixture
def virtual_gpu(request: pytest.FixtureRequest) -> VirtualGpu:
    """A virtual GPU for this test: `device`, `allocated_bytes`, `peak_bytes`. Needs no GPU and computes nothing."""
    state: _State = request.node.stash[_STATE]
    return state.gpu


def _asks(item: pytest.Item) -> bool:
    named = FIXTURE in getattr(item, "fixturenames", ())
    return named or any(item.get_closest_marker(name) is not None for name in (LIMIT, LEAK))


def _gpu_name(item: pytest.Item) -> str:
    for name in (LIMIT, LEAK):
        marker = item.get_closest_marker(name)
        if marker is not None and "gpu" in marker.kwargs:
            return str(marker.kwargs["gpu"])
    return str(item.config.getini("oomdoc_gpu")) or DEFAULT_GPU


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not _asks(item):
        return
    from ..errors import OomdocError
    from . import testing
    from .recording import record

    try:
        testing.check(_marker(item, LIMIT), _marker(item, LEAK))
        stack = ExitStack()
        name = _gpu_name(item)
        recording = stack.enter_context(record(name, virtual=True))
    except OomdocError as error:
        pytest.fail(f"oomdoc: {error}", pytrace=False)
    item.stash[_STATE] = _State(stack, VirtualGpu(name, recording))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        state = item.stash.get(_STATE, None)
        if state is not None:
            del item.stash[_STATE]
            state.stack.close()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """The repetitions of a leak check, with the same fixtures."""
    result = yield
    marker = _marker(pyfuncitem, LEAK)
    if marker is not None:
        from . import testing

        state = pyfuncitem.stash[_STATE]
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        told = testing.leaks(lambda: pyfuncitem.obj(**arguments), state.gpu.recording, marker.kwargs)
        if told:
            pytest.fail(told, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """The limit, at the end of the test; an out-of-memory gets the lines that hold the memory as a section."""
    marker = _marker(item, LIMIT)
    state = item.stash.get(_STATE, None)
    try:
        result = yield
    except BaseException as error:
        if state is not None and type(error).__name__ == "OutOfMemoryError":
            from . import testing

            item.add_report_section("call", "oomdoc", testing.held(state.gpu.recording))
        raise
    if marker is not None and state is not None:
        from . import testing

        told = testing.exceeded(state.gpu.recording, state.gpu.name, *testing.limit_of(marker.args, marker.kwargs))
        if told:
            pytest.fail(told, pytrace=False)
    return result


def _marker(item: pytest.Item, name: str) -> pytest.Mark | None:
    return item.get_closest_marker(name)
