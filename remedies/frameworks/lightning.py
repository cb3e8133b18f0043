"""The YAML of a LightningCLI; its keys are in configs/frameworks/lightning.yaml."""

from collections.abc import Mapping, Sequence

from ..interface import Setting
from . import keys
from .interface import Patch, Target

NAME = "lightning"
TITLE: str = keys.table(NAME)["title"]
VERSION: str = keys.table(NAME)["tried"]
NEW_FILE: str | None = None
_STRATEGY = "trainer.strategy"
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # of torch.optim, those with fused=


def recognises(text: str) -> bool:
    return keys.recognises(NAME, text)


def patch(text: str, settings: Sequence[Setting], target: Target) -> Patch:
    own: dict[str, keys.Handler] = {
        "fsdp": _sharded,
        "cpu-offload": _offloaded,
        "fused-optimizer": _fused,
        "gradient-accumulation": _cut,
        "smaller-batch": _smaller,
    }
    ordered = sorted(settings, key=lambda each: each.name != "fsdp")
    return keys.patch(NAME, text, ordered, target, own)


def _strategy(draft: keys.Draft) -> tuple[str, bool]:
    """The name of the strategy, and whether it is given with arguments."""
    value = draft.get(_STRATEGY)
    if isinstance(value, Mapping):
        return str(value.get("class_path", "")), True
    return str(value or "auto"), False


def _class_path(draft: keys.Draft, name: str) -> str:
    package = "pytorch_lightning" if "pytorch_lightning." in draft.text else "lightning.pytorch"
    return f"{package}.strategies.{name}"


def _sharded(draft: keys.Draft, setting: Setting) -> bool:
    name, with_arguments = _strategy(draft)
    reshard = bool(setting.options.get("reshard_after_forward", True))
    if "fsdp" in name.lower():
        _fsdp(draft, name, with_arguments, reshard)
        return True
    stage = 3 if reshard else 2
    if "deepspeed" in name.lower() and with_arguments:
        draft.set(f"{_STRATEGY}.init_args.stage", stage)
    elif with_arguments:
        draft.refuse(setting.name, f"{_STRATEGY} is {name} with arguments: put deepspeed_stage_{stage} in its place")
        return True
    else:
        offload = "_offload" if name.endswith("_offload") else ""
        draft.set(_STRATEGY, f"deepspeed_stage_{stage}{offload}")
    draft.note("sharding is DeepSpeed's ZeRO here, which needs no list of blocks: `pip install deepspeed`")
    return True


def _fsdp(draft: keys.Draft, name: str, with_arguments: bool, reshard: bool) -> None:
    if not with_arguments and not reshard:
        arguments: dict[str, object] = {"sharding_strategy": "SHARD_GRAD_OP"}
        if name.endswith("_cpu_offload"):
            arguments = {"cpu_offload": True, **arguments}
        draft.set(_STRATEGY, {"class_path": _class_path(draft, "FSDPStrategy"), "init_args": arguments})
    elif with_arguments and "FSDPStrategy" in name:
        draft.set(f"{_STRATEGY}.init_args.sharding_strategy", "FULL_SHARD" if reshard else "SHARD_GRAD_OP")
    if draft.get(f"{_STRATEGY}.init_args.auto_wrap_policy") is None:
        draft.note(
            "FSDPStrategy gathers the whole model at once unless configure_model wraps the blocks, or auto_wrap_policy "
            "names their classes by import path"
        )


def _offloaded(draft: keys.Draft, setting: Setting) -> bool:
    what = setting.options.get("what") or ("optimizer_state",)
    if "optimizer_state" not in what:
        return False
    name, with_arguments = _strategy(draft)
    if "deepspeed" in name.lower() and with_arguments:
        draft.set(f"{_STRATEGY}.init_args.offload_optimizer", True)
    elif name in ("deepspeed", "deepspeed_stage_2"):
        draft.set(_STRATEGY, "deepspeed_stage_2_offload")
    elif name in ("deepspeed_stage_1", "deepspeed_stage_3"):
        # the registered deepspeed_stage_3_offload would move the parameters too
        arguments = {"stage": int(name[-1]), "offload_optimizer": True}
        draft.set(_STRATEGY, {"class_path": _class_path(draft, "DeepSpeedStrategy"), "init_args": arguments})
    elif not name.startswith("deepspeed"):
        draft.refuse(setting.name, f"needs a DeepSpeed strategy, such as {_STRATEGY}: deepspeed_stage_2_offload")
    if "activations" in what:
        keys.write_variant(draft, setting, f"{setting.name}/activations")
    return True


def _fused(draft: keys.Draft, setting: Setting) -> bool:
    path = str(draft.get("optimizer.class_path") or "")
    fused = bool(setting.options.get("fused", True))
    if path.startswith("torch.optim.") and path.rpartition(".")[2] in _FUSED:
        draft.set(f"optimizer.init_args.{'fused' if fused else 'foreach'}", fused)
    else:
        draft.refuse(setting.name, "the optimizer is built in the LightningModule: pass the argument there")
    return True


def _cut(draft: keys.Draft, setting: Setting) -> bool:
    if draft.get(keys.batch_key(draft)) is None:
        key = draft.table["accumulation"]["key"]
        draft.refuse(setting.name, f"no batch_size is under data: divide it in the DataModule, and multiply {key}")
        return True
    return keys.cut_batch(draft, setting)


def _smaller(draft: keys.Draft, setting: Setting) -> bool:
    key = keys.batch_key(draft)
    if draft.get(key) is None:
        draft.refuse(setting.name, "no batch_size is under data: lower it in the DataModule")
        return True
    return keys.smaller_batch(draft, setting)
