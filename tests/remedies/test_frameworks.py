"""A real-looking config in, a diff out; a second time nothing changes; foreign files stay as they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from oomdoc.errors import OomdocError
from oomdoc.remedies.config_file import parse
from oomdoc.remedies.frameworks.all_frameworks import FRAMEWORKS, detect
from oomdoc.remedies.frameworks.editing import get, set_value
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

HF = """\
# my run
output_dir: out   # where
per_device_train_batch_size: 16
learning_rate: 3.0e-4
fp16: true
fsdp_config:
  # keep me
  cpu_ram_efficient_loading: true

num_train_epochs: 3
"""

HF_DIFF = """\
--- a/train.yaml
+++ b/train.yaml
@@ -1,10 +1,19 @@
 # my run
 output_dir: out   # where
-per_device_train_batch_size: 16
+per_device_train_batch_size: 4
 learning_rate: 3.0e-4
-fp16: true
+fp16: false
 fsdp_config:
   # keep me
   cpu_ram_efficient_loading: true
+  version: 2
+  transformer_layer_cls_to_wrap: ["Block"]
+  reshard_after_forward: true
@BLANK@
 num_train_epochs: 3
+bf16: true
+gradient_checkpointing: true
+gradient_checkpointing_kwargs:
+  use_reentrant: false
+fsdp: true
+gradient_accumulation_steps: 4
""".replace("@BLANK@", " ")

DEEPSPEED = """\
{
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "fp16": {"enabled": true, "loss_scale": 0},
    "zero_optimization": {
        "stage": 1,
        "allgather_bucket_size": 2e8
    },
    "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}}
}
"""

DEEPSPEED_DIFF = """\
--- a/ds.json
+++ b/ds.json
@@ -1,10 +1,18 @@
 {
     "train_batch_size": 32,
-    "train_micro_batch_size_per_gpu": 8,
-    "fp16": {"enabled": true, "loss_scale": 0},
+    "train_micro_batch_size_per_gpu": 2,
+    "fp16": {"enabled": false, "loss_scale": 0},
     "zero_optimization": {
-        "stage": 1,
-        "allgather_bucket_size": 2e8
+        "stage": 3,
+        "allgather_bucket_size": 2e8,
+        "offload_optimizer": {
+            "device": "cpu",
+            "pin_memory": true
+        }
     },
-    "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}}
+    "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}},
+    "bf16": {
+        "enabled": true
+    },
+    "gradient_accumulation_steps": 4
 }
"""


@pytest.mark.parametrize(
    ("text", "name", "batch", "diff", "left"),
    [
        (HF, "train.yaml", 16, HF_DIFF, ["cpu-offload"]),
        (DEEPSPEED, "ds.json", 8, DEEPSPEED_DIFF, ["activation-checkpointing"]),
    ],
)
def test_five_remedies_go_into_the_users_own_file(text: str, name: str, batch: int, diff: str, left: list[str]) -> None:
    target = Target(batch_size=batch)
    framework = detect(text, name)
    patch = framework.patch(text, FIVE, target)
    assert patch.diff(name) == diff
    assert [each.name for each in patch.unsupported] == left
    assert framework.patch(patch.text, FIVE, target).diff(name) == ""


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
        ("deepspeed", '{"a": ', "is not valid YAML or JSON"),
        ("hf", "schema: oomdoc.config/1\nbf16: true\n", "this is no Hugging Face"),
        ("torch", "schema: oomdoc.config/1\nremdies: []\n", "unknown key 'remdies'"),
    ],
)
def test_a_file_that_cannot_be_patched_says_why(name: str, text: str, says: str) -> None:
    with pytest.raises(OomdocError) as caught:
        FRAMEWORKS[name].patch(text, FIVE, Target())
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "a: 1\n", "- x\n", "bf16: true\ntrain_batch_size: 1\nfp16: {}\noutput_dir: x\n"])
def test_a_file_of_no_or_of_several_kinds_asks_for_the_framework(text: str) -> None:
    with pytest.raises(OomdocError, match="--framework"):
        detect(text, "x.yaml")


def test_training_arguments_accepts_what_is_written(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = HF.replace("output_dir: out", f"output_dir: {tmp_path}").replace("fp16: true\n", "")
    chosen = (*FIVE[1:3], _setting("fused-optimizer", fused=True))
    hf, file = FRAMEWORKS["hf"], tmp_path / "train.yaml"
    file.write_text(hf.patch(text, chosen, Target()).text)
    (arguments,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_yaml_file(file)
    assert arguments.gradient_checkpointing
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == 16
    assert arguments.optim == "adamw_torch_fused"
    written = yaml.safe_load(hf.patch("", (*FIVE[:2], FIVE[3], _setting("chunked-loss")), Target()).text)
    assert set(written) <= set(transformers.TrainingArguments.__dataclass_fields__)


words = st.text("abcdefgh_", min_size=1, max_size=6).filter(lambda w: w not in ("", "_"))
values = st.one_of(st.integers(-9, 9), st.booleans(), words, st.lists(words, max_size=2))
trees = st.recursive(
    st.dictionaries(words, values, min_size=1, max_size=4),
    lambda children: st.dictionaries(words, st.one_of(values, children), min_size=1, max_size=3),
    max_leaves=6,
)


@example(tree={"a": 0}, path=["a"], value="a", style="json")
@example(tree={"a": ["a"]}, path=["a"], value=0, style="block")
@example(tree={"a": 1}, path=["a"], value=True, style="block")
@given(
    tree=trees,
    path=st.lists(words, min_size=1, max_size=3),
    value=values,
    style=st.sampled_from(["block", "json", "one line"]),
)
def test_setting_a_key_changes_that_key_and_nothing_else(
    tree: dict[str, Any], path: list[str], value: Any, style: str
) -> None:
    if style == "block":
        text = yaml.safe_dump(tree, sort_keys=False)
    else:
        text = json.dumps(tree, indent=4 if style == "json" else None)
    before = get(tree, tuple(path))
    if isinstance(before, dict):
        return
    expected = json.loads(json.dumps(tree))
    at = expected
    for key in path[:-1]:
        if not isinstance(at.get(key), dict):
            at[key] = {}
        at = at[key]
    at[path[-1]] = value
    new = set_value(text, tuple(path), value)
    assert repr(yaml.safe_load(new)) == repr(expected)
    if style != "block":
        assert json.loads(new) == expected
    assert set_value(new, tuple(path), value) == new


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("a: >\n  text\n  more\nb: 1\n", "a: 7\nb: 1\n"),
        ("a:\n- x # c\nb: 1\n", "a: 7 # c\nb: 1\n"),
        ("a: # why\n  - x\nb: 1\n", "a: 7\nb: 1\n"),
        ("a: null # c\n", "a: 7 # c\n"),
        ("---\na: {b: 1}\n...\n", "---\na: 7\n...\n"),
    ],
)
def test_a_value_of_any_style_is_replaced(text: str, new: str) -> None:
    assert set_value(text, ("a",), 7) == new


def test_what_cannot_be_set_alone_is_refused() -> None:
    with pytest.raises(OomdocError, match="change it by hand"):
        set_value("a: &x 5\nb: *x\n", ("a",), 7)
