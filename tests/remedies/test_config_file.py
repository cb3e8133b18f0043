"""oomdoc.yaml: what is accepted, what is refused and how it says so, and that what is written is read back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oomdoc.errors import OomdocError, UnreadableInputError
from oomdoc.remedies.config_file import OPTIONS, ConfigFile, dumps, parse, read, write
from oomdoc.remedies.interface import Setting
from oomdoc.remedies.runtime.install import APPLICATIONS

FULL = """\
schema: oomdoc.config/1
for: {script: train.py, gpu: a100-40gb, world_size: 8}
remedies:
  - {name: mixed-precision, dtype: bfloat16}
  - {name: activation-checkpointing, modules: [Block], every: 1}
  - {name: gradient-accumulation, micro_batches: 4}
  - {name: fsdp, wrap: [Block], reshard_after_forward: true}
  - {name: cpu-offload, what: [optimizer_state]}
expected: {peak_bytes: 0, step_time_factor: 1.3}
"""


def test_the_documented_file_is_read_and_written_back_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "oomdoc.yaml").write_text(FULL)
    config = read(tmp_path / "oomdoc.yaml")
    assert [s.name for s in config.remedies] == list(APPLICATIONS_IN_FILE)
    assert config.remedies[3].options == {"wrap": ["Block"], "reshard_after_forward": True}
    assert (config.gpu, config.world_size, config.expected_step_time_factor) == ("a100-40gb", 8, 1.3)
    write(config, tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == FULL
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.yaml", "oomdoc.yaml"]


APPLICATIONS_IN_FILE = ("mixed-precision", "activation-checkpointing", "gradient-accumulation", "fsdp", "cpu-offload")


def test_the_file_and_the_runtime_know_the_same_remedies_and_options() -> None:
    assert {name: set(options) for name, options in OPTIONS.items()} == {
        name: set(application.options) for name, application in APPLICATIONS.items()
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("for:", "fro:"), "unknown key 'fro'. Did you mean for?"),
        (("world_size: 8", "world_size: eight"), "world_size must be a int"),
        (("dtype: bfloat16", "dtype: bf16"), "dtype must be bfloat16 or float16, it is 'bf16'"),
        (("micro_batches: 4", "micro_batches: 0"), "whole number of at least 1"),
        (("micro_batches: 4", "micro_batches: true"), "whole number of at least 1"),
        (("modules: [Block]", "modules: Block"), "must be a list of class names"),
        (("modules: [Block]", "module: [Block]"), "unknown key 'module'. Did you mean modules?"),
        (("name: fsdp", "name: fdsp"), "no remedy is called 'fdsp'; did you mean fsdp?"),
        (("what: [optimizer_state]", "what: [weights]"), "must be a list of optimizer_state, activations"),
        (("oomdoc.config/1", "oomdoc.config/9"), "this oomdoc reads 'oomdoc.config/1'"),
        (("{name: cpu-offload, what: [optimizer_state]}", "cpu-offload"), "must be a mapping with a name"),
    ],
)
def test_a_wrong_entry_is_named(change: tuple[str, str], says: str) -> None:
    assert change[0] in FULL
    with pytest.raises(OomdocError) as caught:
        parse(FULL.replace(*change))
    assert says in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("text", ["", "- a\n", "a: [1\n", "!!python/object/apply:os.system [echo]", "a: \x00"])
def test_what_is_no_config_cannot_be_read(text: str) -> None:
    with pytest.raises(UnreadableInputError):
        parse(text)


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match="oomdoc plan"):
        read(tmp_path / "none.yaml")


def test_a_mismatch_is_named() -> None:
    config = parse(FULL)
    assert config.mismatches(script="train.py", gpu="a100-40gb", world_size=8) == ()
    assert config.mismatches(script="train.py", gpu="h100-80gb", world_size=None) == (
        "planned for gpu a100-40gb, used with h100-80gb",
    )


names = st.lists(st.text(st.characters(categories=("Lu", "Ll", "Nd"), max_codepoint=0x24F), min_size=1), min_size=1)


@given(modules=names, every=st.integers(1, 99), script=st.text(max_size=40), peak=st.integers(0, 1 << 60))
def test_whatever_is_written_is_read_back(modules: list[str], every: int, script: str, peak: int) -> None:
    config = ConfigFile(
        remedies=(Setting(name="activation-checkpointing", options={"modules": modules, "every": every}),),
        script=script,
        expected_peak_bytes=peak,
    )
    assert parse(dumps(config)) == config
