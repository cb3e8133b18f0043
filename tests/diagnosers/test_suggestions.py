"""What a finding suggests is not what the recording says the job has already."""

from typing import Any

import pytest
from oomdoc.diagnosers.all_causes import DIAGNOSERS
from oomdoc.diagnosers.suggestions import suited
from oomdoc.snapshots.model import Recording

ALL = ("fsdp", "activation-checkpointing", "mixed-precision", "smaller-batch")


def recorded(world_size: int = 8, **facts: Any) -> Recording:
    return Recording(
        schema="oomdoc.recording/1", kind="virtual", argv=(), versions={}, gpu=None, capacity_bytes=None,
        outside_bytes=None, rank=0, world_size=world_size, categories=(), modules=(), devices={}, facts=facts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "in_use"),
    [
        ({}, None),
        ({"autocast": None, "parameters": {"bytes_of_dtype": {"float32": 4, "bfloat16": 4}}}, None),
        ({"autocast": "bfloat16"}, "mixed-precision"),
        ({"parameters": {"bytes_of_dtype": {"bfloat16": 4}}}, "mixed-precision"),
        ({"parameters": {"bytes_of_dtype": {"float32": 4}, "gathered_dtype": "bfloat16"}}, "mixed-precision"),
        ({"recomputes": True}, "activation-checkpointing"),
        ({"parameters": {"sharded": True}}, "fsdp"),
    ],
)
def test_what_is_in_use_is_not_suggested(facts: dict[str, Any], in_use: str | None) -> None:
    assert suited(ALL, recorded(**facts)) == tuple(name for name in ALL if name != in_use)


def test_on_one_gpu_what_needs_several_comes_last() -> None:
    assert suited(ALL, recorded(world_size=1)) == (*ALL[1:], "fsdp")
    assert suited(ALL, None) == ALL


def test_no_cause_is_left_without_a_suggestion() -> None:
    """One FSDP unit over a whole model is told to wrap its blocks, though it is sharded."""
    busy = recorded(autocast="bfloat16", recomputes=True, parameters={"sharded": True})
    for cause in DIAGNOSERS.values():
        assert bool(suited(cause.REMEDIES, busy)) == bool(cause.REMEDIES)
    assert suited(("fsdp",), busy) == ("fsdp",)
