"""The facts of a recorded job (`Recording.facts`, see `recorders.job`), typed; empty where none were recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..snapshots.model import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    name: str  # class
    foreach: bool | None
    fused: bool | None
    parameter_bytes: int
    state_bytes: int  # 0 before the first step


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """`known` is False for a snapshot that oomdoc did not record: then everything is empty."""

    known: bool = False
    class_of: Mapping[str, str] = field(default_factory=dict)  # module path -> class name
    blocks: tuple[str, ...] = ()  # paths of the model's repeated blocks, in order
    parameter_count: int = 0
    parameter_bytes: int = 0
    trainable_bytes: int = 0
    largest_parameter_bytes: int = 0
    bytes_of_dtype: Mapping[str, int] = field(default_factory=dict)
    sharded: bool = False
    parameter_bytes_of_module: Mapping[str, int] = field(default_factory=dict)  # path -> own parameters
    optimizers: tuple[OptimizerFacts, ...] = ()
    batch_statistics: bool = False
    loader_batch_size: int | None = None

    @property
    def block_classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.class_of.get(path, "") for path in self.blocks))

    def bytes_below(self, path: str) -> int:
        """Parameter bytes of the module at `path` and of all inside it."""
        inside = path + "."
        return sum(n for each, n in self.parameter_bytes_of_module.items() if each == path or each.startswith(inside))


def read(recording: Recording | None) -> JobFacts:
    """Facts that have another shape than expected (an older or newer oomdoc) count as not recorded."""
    if recording is None or not isinstance(recording.facts.get("modules"), Mapping):
        return JobFacts()
    facts: Mapping[str, Any] = recording.facts
    parameters, loader = facts.get("parameters") or {}, facts.get("loader") or {}
    try:
        return JobFacts(
            known=True,
            class_of={str(path): str(name) for path, name in facts["modules"].items()},
            blocks=tuple(facts.get("blocks") or ()),
            parameter_count=int(parameters.get("count", 0)),
            parameter_bytes=int(parameters.get("bytes", 0)),
            trainable_bytes=int(parameters.get("trainable_bytes", 0)),
            largest_parameter_bytes=int(parameters.get("largest_bytes", 0)),
            bytes_of_dtype={str(k): int(v) for k, v in (parameters.get("bytes_of_dtype") or {}).items()},
            sharded=bool(parameters.get("sharded")),
            parameter_bytes_of_module={
                str(k): int(v) for k, v in (facts.get("parameter_bytes_of_module") or {}).items()
            },
            optimizers=tuple(_optimizer(each) for each in facts.get("optimizers") or ()),
            batch_statistics=bool(facts.get("batch_statistics")),
            loader_batch_size=loader.get("batch_size"),
        )
    except (TypeError, ValueError, AttributeError, KeyError):
        return JobFacts()


def _optimizer(facts: Mapping[str, Any]) -> OptimizerFacts:
    return OptimizerFacts(
        name=str(facts["class"]),
        foreach=facts.get("foreach"),
        fused=facts.get("fused"),
        parameter_bytes=int(facts.get("parameter_bytes", 0)),
        state_bytes=int(facts.get("state_bytes", 0)),
    )
