"""The facts of a recorded job (`Recording.facts`, see `recorders.facts`), typed; empty where none were recorded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..snapshots.model import Recording

FSDP1 = "FullyShardedDataParallel"  # its parameters do not say that they are shards


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    name: str  # class
    foreach: bool | None
    fused: bool | None
    parameter_bytes: int
    state_bytes: int  # 0 before the first step


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """`known` is False where nothing says how the model is built: then everything is empty.

    `inferred`: oomdoc did not record it; read from frames, lifetimes and sizes (`structure`), paths and classes as far
    as frames tell them.
    """

    known: bool = False
    inferred: bool = False
    class_of: Mapping[str, str] = field(default_factory=dict)  # module path -> class name
    blocks: tuple[str, ...] = ()  # paths of the model's repeated blocks, in order
    parameter_count: int = 0
    parameter_bytes: int = 0
    trainable_bytes: int = 0
    largest_parameter_bytes: int = 0
    bytes_of_dtype: Mapping[str, int] = field(default_factory=dict)
    sharded: bool = False
    gathered_dtype: str | None = None  # in which FSDP gathers the parameters, where that is another than theirs
    parameter_bytes_of_module: Mapping[str, int] = field(default_factory=dict)  # path -> own parameters, each once
    parameter_bytes_used_by_module: Mapping[str, int] = field(default_factory=dict)  # shared ones in each user
    optimizers: tuple[OptimizerFacts, ...] = ()
    batch_statistics: bool = False
    training_mode: bool | None = None  # of the models when the recording ended; None where that is not known
    loader_batch_size: int | None = None
    autocast: str | None = None  # dtype of torch.autocast in the last forward
    tokens: int | None = None  # elements of the largest integer input of a step

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
            bytes_of_dtype=_sizes(parameters.get("bytes_of_dtype")),
            sharded=bool(parameters.get("sharded")) or FSDP1 in facts["modules"].values(),
            gathered_dtype=parameters.get("gathered_dtype"),
            parameter_bytes_of_module=_sizes(facts.get("parameter_bytes_of_module")),
            parameter_bytes_used_by_module=_sizes(facts.get("parameter_bytes_used_by_module")),
            optimizers=tuple(_optimizer(each) for each in facts.get("optimizers") or ()),
            batch_statistics=bool(facts.get("batch_statistics")),
            training_mode=_boolean(facts.get("training_mode")),
            loader_batch_size=loader.get("batch_size"),
            autocast=facts.get("autocast"),
            tokens=_tokens(facts.get("inputs") or ()),
        )
    except (TypeError, ValueError, AttributeError, KeyError):
        return JobFacts()


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _sizes(facts: Mapping[str, Any] | None) -> dict[str, int]:
    return {str(key): int(value) for key, value in (facts or {}).items()}


def _tokens(inputs: Iterable[Mapping[str, Any]]) -> int | None:
    """Token ids are 8-byte integers; labels of the same shape do not count twice."""
    sizes = [prod(each["shape"]) for each in inputs if each.get("dtype") == "int64" and each.get("shape")]
    return max(sizes, default=None)


def _optimizer(facts: Mapping[str, Any]) -> OptimizerFacts:
    return OptimizerFacts(
        name=str(facts["class"]),
        foreach=facts.get("foreach"),
        fused=facts.get("fused"),
        parameter_bytes=int(facts.get("parameter_bytes", 0)),
        state_bytes=int(facts.get("state_bytes", 0)),
    )
