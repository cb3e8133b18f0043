"""The JSON contract: what is printed is what the schema says, and the schema is strict."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from oomdoc.gates.interface import Gate
from oomdoc.reports import json as renderer
from oomdoc.reports.model import DeviceReplay, Report

SCHEMA = json.loads((Path(__file__).parents[2] / "configs" / "report.schema.json").read_text(encoding="utf-8"))
GIB = 2**30


def valid(content: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(content))


def test_the_schema_is_a_schema() -> None:
    """It is written in the dialect that it names."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_full_report_is_valid(report: Report) -> None:
    """Every part filled: findings, plan with and without verification, unknowns."""
    jsonschema.validate(json.loads(renderer.render(report)), SCHEMA, jsonschema.Draft202012Validator)


def test_a_report_without_failure_or_capacity_is_valid(healthy: Report) -> None:
    """What cannot be known is null."""
    content = json.loads(renderer.render(healthy))
    jsonschema.validate(content, SCHEMA, jsonschema.Draft202012Validator)
    device = content["devices"][0]
    assert (device["capacity_bytes"], device["outside_bytes"], device["oom"]) == (None, None, None)
    assert content["remedies"] == []


def test_gate_and_replay_are_valid(make_report: Callable[..., Report], gate: Gate) -> None:
    """The optional parts appear only where a command fills them."""
    replay = DeviceReplay(
        rank=0, device=0, alloc_conf=None, capacity_bytes=None, alloc_events=4, matched_addresses=4, segment_events=2,
        matched_segments=1, peak_reserved_bytes=39 * GIB, fits=None, departure="event 3",
    )  # fmt: skip
    content = json.loads(renderer.render(make_report(gate=gate, replays=(replay,))))
    jsonschema.validate(content, SCHEMA, jsonschema.Draft202012Validator)
    assert content["gate"]["passed"] is False
    assert content["devices"][0]["replay"]["matched_segments"] == 1
    plain = json.loads(renderer.render(make_report()))
    assert "gate" not in plain
    assert "replay" not in plain["devices"][0]


def objects(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        yield content
        for value in content.values():
            yield from objects(value)
    elif isinstance(content, list):
        for value in content:
            yield from objects(value)


def test_the_schema_refuses_a_key_it_does_not_know(report: Report) -> None:
    """Strict everywhere but in `settings`, whose keys are the remedies'."""
    content = json.loads(renderer.render(report))
    loose = 0
    for index, _ in enumerate(objects(content)):
        changed = copy.deepcopy(content)
        list(objects(changed))[index]["surprise"] = {}
        loose += valid(changed)
    settings = [each["settings"] for each in content["remedies"]]
    assert loose == sum(1 + len(each) for each in settings)


@pytest.mark.parametrize("key", ["source", "verdict", "devices", "findings", "inconclusive", "remedies"])
def test_the_schema_misses_a_key_that_is_not_there(report: Report, key: str) -> None:
    """Readers may rely on every key of the contract."""
    content = json.loads(renderer.render(report))
    del content[key]
    assert not valid(content)


def test_a_run_that_could_not_be_judged_is_not_called_verified(report: Report) -> None:
    """Its row says null, and the reason stands with what could not be told."""
    content = json.loads(renderer.render(report))
    assert [each["verified"] is not None for each in content["remedies"]] == [True, False, False]
    reasons = {each["code"]: each["reason"] for each in content["inconclusive"]}
    assert reasons["mixed-precision + cpu-offload"] == "not verified: aten::foo is new"
    assert reasons["fsdp"] == "one GPU: nothing to shard over"


def test_categories_are_those_of_the_profile(report: Report) -> None:
    """Bytes are integers, with the confidence beside each."""
    categories = json.loads(renderer.render(report))["devices"][0]["categories"]
    assert categories["activation"] == {"bytes": 24 * GIB, "confidence": "exact"}
    assert sum(each["bytes"] for each in categories.values()) == 36 * GIB
