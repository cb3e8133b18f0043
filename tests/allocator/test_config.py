"""Allocator settings are read as PyTorch reads them; its own parser on this CPU is the judge where it runs here."""

import json
import subprocess
import sys

import pytest
from oomdoc.allocator.config import (
    MIB,
    AllocatorConfig,
    AllocConfError,
    from_snapshot_settings,
    parse,
    text_in,
)

ACCEPTED = [
    "",
    " ",
    "max_split_size_mb:20",
    "max_split_size_mb:128",
    "max_split_size_mb:128abc",
    "max_split_size_mb:18446744073709551615",
    "max_non_split_rounding_mb:20",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:8e-1",
    "garbage_collection_threshold:0x1p-1",
    "expandable_segments: True",
    "expandable_segments:False,",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:1",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[256:1, 512:2, 1024:4, >:8], max_split_size_mb:64",
    "roundup_power2_divisions:[64:8]",
    "roundup_power2_divisions:[512:2,64:8]",
    "roundup_power2_divisions:[>:8]",
    "roundup_power2_divisions:[131072:4]",
    "roundup_power2_divisions:[256:1,]",
    "roundup_power2_divisions:[256:0]",
    "roundup_power2_divisions:[]",
    "large_segment_size_mb:11",
    "large_segment_size_mb:40,max_split_size_mb:40",
    "max_split_size_mb:128,max_split_size_mb:256",
    "pinned_use_background_threads:True,pinned_max_cached_size_mb:5",
]
REFUSED = [
    "max_split_size_mb:19",
    "max_split_size_mb:1e3",
    "max_split_size_mb:abc",
    "max_split_size_mb:",
    "max_split_size_mb",
    "max_split_size_mb:99999999999999999999",
    "max_non_split_rounding_mb:19",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:nan",
    "expandable_segments:true",
    "expandable_segments:1",
    "expandable_segments=True",
    "expandable_segments:True max_split_size_mb:128",
    "expandable_segments:True,,",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[255:1]",
    "roundup_power2_divisions:[0:4]",
    "roundup_power2_divisions:[256:1,512:2",
    "large_segment_size_mb:10",
    "max_split_size_mb:30,large_segment_size_mb:40",
]
ORACLE = """
import ctypes, json, os, sys, torch
library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
divisions = library._ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm
divisions.restype, divisions.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
answers = []
for text in json.load(sys.stdin):
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except Exception:
        answers.append(None)
    else:
        answers.append([divisions(1 << 20 + bucket) for bucket in range(16)])
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def pytorch_answers():
    """What torch's own parser says to each text: None = refused, else its roundup divisions."""
    pytest.importorskip("torch")
    texts = [*ACCEPTED, *REFUSED]
    done = subprocess.run([sys.executable, "-c", ORACLE], input=json.dumps(texts), capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"this torch does not expose its parser: {done.stderr.strip().splitlines()[-1]}")
    return dict(zip(texts, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_pytorch_accepts_is_accepted(text, pytorch_answers):
    assert pytorch_answers[text] == list(parse(text).roundup_divisions)


@pytest.mark.parametrize("text", REFUSED)
def test_what_pytorch_refuses_is_refused(text, pytorch_answers):
    assert pytorch_answers[text] is None
    with pytest.raises(AllocConfError):
        parse(text)


def test_values():
    assert parse("") == AllocatorConfig()
    config = parse("max_split_size_mb:128,garbage_collection_threshold:0.8,per_process_memory_fraction:0.5")
    assert config.max_split_size == 128 * MIB
    assert config.garbage_collection_threshold == 0.8
    assert config.memory_fraction == 0.5
    config = parse("expandable_segments:True,large_segment_size_mb:40,max_non_split_rounding_mb:64")
    assert (config.expandable_segments, config.large_segment_size) == (True, 40 * MIB)
    assert config.max_non_split_rounding == 64 * MIB


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("foo:1", "unknown key 'foo'"),
        ("max_split_size:1", "unknown key 'max_split_size'"),
        ("expandable_segments:yes", "expandable_segments takes True or False, not 'yes'"),
        ("backend:cudaMallocAsync", "another allocator"),
        ("backend:jemalloc", "native or cudaMallocAsync"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction must lie between 0 and 1"),
        ("pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb must be above 0"),
        ("pinned_num_register_threads:3", "pinned_num_register_threads must be a power of 2"),
        ("max_split_size_mb,128", "expected ':'"),
        ("expandable_segments:True:max_split_size_mb:128", "expected ','"),
    ],
)
def test_the_message_names_what_is_wrong(text, says):
    with pytest.raises(AllocConfError, match=says.replace("(", r"\(")) as caught:
        parse(text)
    assert caught.value.exit_status == 2


def test_the_first_environment_variable_counts():
    cuda, general = "expandable_segments:True", "max_split_size_mb:64"
    both = {"PYTORCH_CUDA_ALLOC_CONF": cuda, "PYTORCH_ALLOC_CONF": general}
    assert text_in(both) == cuda
    assert text_in({"PYTORCH_ALLOC_CONF": general}) == general
    assert parse(text_in({})) == AllocatorConfig()


def test_settings_of_a_snapshot():
    shown = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:40,expandable_segments:True",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.6,
        "expandable_segments": False,
        "roundup_power2_divisions": {str(1 << bucket): 4 if bucket == 3 else 0 for bucket in range(16)},
    }
    config = from_snapshot_settings(shown)
    assert config.large_segment_size == 40 * MIB
    assert config.max_split_size is None
    assert config.garbage_collection_threshold == 0.6
    assert not config.expandable_segments
    assert config.roundup_divisions == (0, 0, 0, 4, *[0] * 12)
    assert from_snapshot_settings({"max_split_size": 64 * MIB}).max_split_size == 64 * MIB
    assert from_snapshot_settings({}) == AllocatorConfig()


def test_roundup_vectors():
    """1200 MiB with 4 divisions: the steps between 1024 and 2048 MiB are 256 MiB."""
    config = parse("roundup_power2_divisions:4")
    assert config.round_size(1200 * MIB) == 1280 * MIB
    assert config.round_size(1024 * MIB) == 1024 * MIB
    assert config.round_size(1) == 512
    assert config.round_size(2048) == 2048
    assert config.round_size(2049) == 2560
    listed = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert listed.round_size(300 * MIB + 1) == 300 * MIB + 512
    assert listed.round_size(600 * MIB) == 768 * MIB
    assert listed.round_size(1200 * MIB) == 1280 * MIB
    assert listed.round_size(2100 * MIB) == 2304 * MIB


@pytest.mark.parametrize("value", [None, "x", [], 1.5, True])
def test_recorded_divisions_that_are_no_numbers_are_refused(value):
    with pytest.raises(AllocConfError, match="roundup_power2_divisions"):
        from_snapshot_settings({"roundup_power2_divisions": {"1": value}})
