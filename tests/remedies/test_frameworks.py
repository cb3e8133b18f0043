"""A real-looking config in, a diff out; a second time nothing changes; foreign files stay as they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from oomdoc.errors import OomdocError
from oomdoc.remedies.config_file import parse
from oomdoc.remedies.frameworks.all_frameworks import FRAMEWORKS, detect
from oomdoc.remedies.frameworks.interface import Target
from oomdoc.remedies.interface import Setting


def _setting(name: str, **options: Any) -> Setting:
    return Setting(name=name, options=options)


FIVE = (
    _setting("mixed-precision", dtype="bfloat16"),
    _setting("activation-checkpointing", modules=["Block"], every=1),
    _setting("gradient-accumulation", micro_batches=4),
    _setting("fsdp", wrap=["Block"], reshard_after_forward=True),
    _setting("cpu-offload", what=["optimizer_state"]),
)

EVERY = (*FIVE, _setting("fused-optimizer", fused=True), _setting("chunked-loss", chunks=8))
CONFIGS = Path(__file__).parent / "configs"
HF = (CONFIGS / "hf.yaml").read_text()
DEEPSPEED = (CONFIGS / "deepspeed.json").read_text()

# The remedies that no key of the file can express: said, not left out silently.
LEFT = {
    "hf.yaml": ["cpu-offload"],
    "accelerate.yaml": ["fused-optimizer", "chunked-loss", "gradient-accumulation"],
    "accelerate_fsdp1.yaml": ["fused-optimizer", "chunked-loss", "gradient-accumulation"],
    "accelerate_deepspeed.yaml": [
        "activation-checkpointing",
        "fused-optimizer",
        "chunked-loss",
        "gradient-accumulation",
    ],
    "deepspeed.json": ["activation-checkpointing", "fused-optimizer", "chunked-loss"],
    "lightning.yaml": ["activation-checkpointing", "chunked-loss"],
    "torchtitan.toml": ["chunked-loss"],
    "torchtune.yaml": [],
    "axolotl.yml": [],
}


@pytest.mark.parametrize("name", LEFT)
def test_a_plan_goes_into_the_users_own_file_once(name: str) -> None:
    """Every remedy at once: the whole diff, what could not be written, and nothing the second time."""
    text = (CONFIGS / name).read_text()
    target = Target(batch_size=16, world_size=8)
    framework = detect(text, name)
    assert name.partition(".")[0].partition("_")[0] == framework.NAME
    patch = framework.patch(text, EVERY, target)
    assert patch.diff(name) == (CONFIGS / f"{name}.diff").read_text()
    assert [each.name for each in patch.unsupported] == LEFT[name]
    assert framework.patch(patch.text, EVERY, target).text == patch.text
    # not knowing the batch of the plan, a second time must not cut the batch again either
    assert framework.patch(patch.text, EVERY, Target(world_size=8)).text == patch.text


@pytest.mark.parametrize("name", LEFT)
def test_line_ends_and_a_byte_order_mark_stay(name: str) -> None:
    text = (CONFIGS / name).read_text()
    target = Target(batch_size=16, world_size=8)
    plain = detect(text, name).patch(text, EVERY, target).text
    odd = "\ufeff" + text.replace("\n", "\r\n")
    assert detect(odd, name).patch(odd, EVERY, target).text == "\ufeff" + plain.replace("\n", "\r\n")


@pytest.mark.parametrize("name", LEFT)
def test_each_remedy_alone_is_written_or_refused(name: str) -> None:
    """No remedy passes in silence, also one that no table knows."""
    text = (CONFIGS / name).read_text()
    framework = detect(text, name)
    smaller = (_setting("smaller-batch", batch_size=2), _setting("smaller-batch", divided_by=2))
    for setting in (*EVERY, *smaller, _setting("cpu-offload", what=["activations"]), _setting("of-tomorrow")):
        patch = framework.patch(text, (setting,), Target(batch_size=16, world_size=8))
        assert patch.text != text or patch.unsupported or patch.notes, setting
        assert framework.patch(patch.text, (setting,), Target(batch_size=16, world_size=8)).text == patch.text


def test_a_batch_that_nothing_tells_is_not_halved_at_every_fix() -> None:
    patch = FRAMEWORKS["hf"].patch(HF, (_setting("smaller-batch", divided_by=2),), Target())
    assert patch.text == HF
    assert patch.unsupported[0].reason.endswith("divide per_device_train_batch_size by hand")


def test_a_plain_script_gets_an_oomdoc_yaml_that_can_be_read() -> None:
    target = Target(script="train.py", gpu="a100-40gb", world_size=2, peak_bytes=1 << 30)
    by_hand = _setting("chunked-loss", chunks=8)
    patch = FRAMEWORKS["torch"].patch("", (*FIVE, by_hand), target)
    config = parse(patch.text)
    assert config.remedies == FIVE
    assert (config.script, config.expected_peak_bytes) == ("train.py", 1 << 30)
    assert [each.name for each in patch.unsupported] == ["chunked-loss"]
    assert detect(patch.text, "oomdoc.yaml").NAME == "torch"
    assert FRAMEWORKS["torch"].patch(patch.text, FIVE, target).diff("oomdoc.yaml") == ""


def test_a_new_file_is_made_where_there_is_none() -> None:
    hf = FRAMEWORKS["hf"].patch("", FIVE[:2], Target()).text
    assert yaml.safe_load(hf)["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    ds = json.loads(FRAMEWORKS["deepspeed"].patch("", (FIVE[0], FIVE[3], FIVE[4]), Target()).text)
    assert ds["zero_optimization"] == {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}}


def test_zero_2_keeps_its_stage_when_only_the_optimizer_is_offloaded() -> None:
    text = DEEPSPEED.replace('"stage": 1', '"stage": 2')
    patched = json.loads(FRAMEWORKS["deepspeed"].patch(text, (FIVE[4],), Target()).text)
    assert patched["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("hf", "per_device_train_batch_size: 6\noutput_dir: x\n", "cannot be cut into 4 equal micro-batches"),
        ("deepspeed", '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {}}', "is 'auto'"),
        ("deepspeed", '{"optimizer": {}, "zero_optimization": {}}', "is not in the file"),
        ("hf", "model: x\nlr: 1\n", "this is no Hugging Face TrainingArguments"),
        ("deepspeed", "[1, 2]", "is not a mapping"),
        ("deepspeed", '{"a": ', "is not valid JSON (line 1: Expecting value)"),
        ("hf", "schema: oomdoc.config/1\nbf16: true\n", "this is no Hugging Face"),
        ("torch", "schema: oomdoc.config/1\nremdies: []\n", "unknown key 'remdies'"),
    ],
)
def test_a_file_that_cannot_be_patched_says_why(name: str, text: str, says: str) -> None:
    with pytest.raises(OomdocError) as caught:
        FRAMEWORKS[name].patch(text, FIVE, Target())
    assert says in str(caught.value)


SEVERAL = "bf16: true\ntrain_batch_size: 1\nfp16: {}\nlearning_rate: 1\n"


@pytest.mark.parametrize("text", ["", "a: 1\n", SEVERAL])
def test_a_file_of_no_or_of_several_kinds_asks_for_the_framework(text: str) -> None:
    with pytest.raises(OomdocError, match="--framework"):
        detect(text, "x.yaml")


def test_training_arguments_of_an_older_release_are_refused_what_they_lack() -> None:
    fsdp = (_setting("fsdp", wrap=["Block"]),)
    patch = FRAMEWORKS["hf"].patch(HF, fsdp, Target(framework_version="4.57.1"))
    assert patch.text == HF
    assert "need transformers 5.24 or newer, and 4.57.1 is used" in patch.unsupported[0].reason
    with pytest.raises(OomdocError, match=r"for transformers from 4\.48, and 4\.20 is used"):
        FRAMEWORKS["hf"].patch(HF, fsdp, Target(framework_version="4.20"))
    titan = (CONFIGS / "torchtitan.toml").read_text()
    with pytest.raises(OomdocError, match=r"0\.3 reads no TOML"):
        FRAMEWORKS["torchtitan"].patch(titan, FIVE, Target(framework_version="0.3.0"))


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("torchtitan.toml", "local_batch_size", "batch_size", "torchtitan before 0.1"),
        ("accelerate_deepspeed.yaml", "zero_stage: 1", "deepspeed_config_file: ds.json", "--config ds.json"),
        ("torchtune.yaml", "optimizer_in_bwd: False", "optimizer_in_bwd: True", "cannot accumulate"),
        ("axolotl.yml", "sequence_len: 4096", "deepspeed: zero3.json", "leaves sharding to DeepSpeed"),
        ("axolotl.yml", "optimizer: adamw_torch", "optimizer: adamw_bnb_8bit", "no fused choice"),
        ("lightning.yaml", "batch_size: 16", "size: 16", "no batch_size is under data"),
    ],
)
def test_what_else_the_file_says_is_respected(name: str, old: str, new: str, says: str) -> None:
    text = (CONFIGS / name).read_text()
    assert old in text
    text = text.replace(old, new, 1)
    said = ""
    try:
        patch = detect(text, name).patch(text, EVERY, Target(batch_size=16, world_size=8))
        said = " ".join(each.reason for each in patch.unsupported)
    except OomdocError as error:
        said = str(error)
    assert says in said


def test_torchtitan_replicates_across_nodes() -> None:
    """16 ranks, two of which are tensor parallel: 8 with data of their own, in two groups of 4 that share a model."""
    text = (CONFIGS / "torchtitan.toml").read_text()
    hybrid = (_setting("hsdp", wrap=["Block"], shards=4),)
    new = FRAMEWORKS["torchtitan"].patch(text, hybrid, Target(world_size=16)).text
    assert "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n" in new
    assert FRAMEWORKS["torchtitan"].patch(new, hybrid, Target(world_size=16)).text == new


def test_a_value_that_the_trainer_decides_stays() -> None:
    text = '{"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": "auto"}, "zero_optimization": {}}'
    patch = FRAMEWORKS["deepspeed"].patch(text, FIVE[:1], Target())
    assert patch.text == text
    assert "bf16.enabled is auto, and stays: TrainingArguments decides" in " ".join(patch.notes)


def test_comments_in_oomdoc_yaml_stay() -> None:
    target = Target(script="train.py", gpu="a100-40gb", world_size=1)
    old = FRAMEWORKS["torch"].patch("", FIVE[:2], target).text
    commented = "# ours\n" + old.replace("bfloat16}", "bfloat16}  # checked by Ada")
    new = FRAMEWORKS["torch"].patch(commented, FIVE[:3], target).text
    assert new == commented + "  - {name: gradient-accumulation, micro_batches: 4}\n"
    assert parse(new).remedies == FIVE[:3]
