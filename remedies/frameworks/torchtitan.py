"""torchtitan's TOML; its keys are in configs/frameworks/torchtitan.yaml."""

from collections.abc import Sequence

from ...errors import OomdocError
from ..interface import Setting
from . import keys
from .interface import Patch, Target

NAME = "torchtitan"
TITLE: str = keys.table(NAME)["title"]
VERSION: str = keys.table(NAME)["tried"]
NEW_FILE: str | None = None
_GLOBAL = "training.global_batch_size"
_NOT_DATA = ("tensor_parallel_degree", "context_parallel_degree", "pipeline_parallel_degree")


def recognises(text: str) -> bool:
    return keys.recognises(NAME, text)


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    draft = keys.Draft(NAME, text, target)
    if draft.get("training.batch_size") is not None:
        raise OomdocError(
            "training.batch_size is a key of torchtitan before 0.1, where local_batch_size took its place: this file "
            "is for a release that oomdoc does not write for. Nothing was changed."
        )
    own: dict[str, keys.Handler] = {
        "activation-checkpointing": _checkpointing,
        "gradient-accumulation": _cut,
        "fsdp": _sharded,
        "hsdp": _hybrid,
    }
    return keys.patch(NAME, text, settings, target, own)


def _checkpointing(draft: keys.Draft, setting: Setting) -> bool:
    every = int(setting.options.get("every", 1))
    draft.set("activation_checkpoint.mode", "full" if every == 1 else "selective")
    if every > 1:
        draft.set("activation_checkpoint.selective_ac_option", str(every))
    return True


def _sharded(draft: keys.Draft, setting: Setting) -> bool:
    """torchtitan shards over all ranks unless told otherwise; each TransformerBlock is a unit."""
    if draft.get("parallelism.data_parallel_shard_degree") not in (None, -1):
        draft.note("parallelism.data_parallel_shard_degree stays as it is")
    return False


def _hybrid(draft: keys.Draft, setting: Setting) -> bool:
    ranks, shards = _data_parallel_ranks(draft), setting.options.get("shards")
    if ranks is None or not isinstance(shards, int) or ranks % shards:
        draft.refuse(setting.name, "the plan does not say how many ranks share the data, and how many of them a model")
        return True
    draft.set("parallelism.data_parallel_replicate_degree", ranks // shards)
    draft.set("parallelism.data_parallel_shard_degree", shards)
    return True


def _cut(draft: keys.Draft, setting: Setting) -> bool:
    """torchtitan accumulates until global_batch_size samples are done, so that one stays and the local one is cut."""
    micro_batches = int(setting.options.get("micro_batches", 2))
    key = keys.batch_key(draft)
    batch = keys.whole(draft, key, draft.table["batch"]["default"])
    ranks, total = _data_parallel_ranks(draft), draft.get(_GLOBAL)
    if not isinstance(total, int) or total <= 0:
        if ranks is None:
            raise OomdocError(
                f"{_GLOBAL} is not in the file, and the plan does not say for how many GPUs: give it as a number, so "
                "that the effective batch can be kept."
            )
        total = batch * ranks
    accumulation = total // (batch * ranks) if ranks else 1
    if keys.already_cut(draft, batch, accumulation, micro_batches, f"the accumulation that {_GLOBAL} makes"):
        return True
    draft.set(key, keys.divided(draft, key, batch, micro_batches))
    draft.set(_GLOBAL, total)
    return True


def _data_parallel_ranks(draft: keys.Draft) -> int | None:
    """Ranks with a batch of their own; None where the plan does not say how many there are."""
    ranks = draft.target.world_size
    if ranks is None:
        return None
    for name in _NOT_DATA:
        degree = draft.get(f"parallelism.{name}")
        ranks //= degree if isinstance(degree, int) and degree > 0 else 1
    return max(1, ranks)
