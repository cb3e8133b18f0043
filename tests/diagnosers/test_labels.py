"""What findings call modules and weights."""

import gc

import pytest

torch = pytest.importorskip("torch")

from oomdoc.configs import loader  # noqa: E402  (torch may be absent)
from oomdoc.diagnosers import parameters_dominate  # noqa: E402
from oomdoc.diagnosers.call_sites import like_module, module_label  # noqa: E402
from oomdoc.diagnosers.interface import Case  # noqa: E402
from oomdoc.diagnosers.judging import Held  # noqa: E402
from oomdoc.diagnosers.profile import build  # noqa: E402
from oomdoc.recorders.virtual.recorder import target_of  # noqa: E402
from oomdoc.recorders.virtual.session import virtual_session  # noqa: E402


@pytest.mark.parametrize(
    ("path", "alone", "together"),
    [
        ("0", "the model's child 0", "the model's children"),
        ("3.attn", "attn of the model's child 3", "attn of the model's children"),
        ("blocks.3.mlp", "blocks.3.mlp", "blocks.*.mlp"),
        ("Linear", "Linear", "Linear"),
    ],
)
def test_a_path_of_numbers_is_put_in_words(path: str, alone: str, together: str) -> None:
    like = like_module(path)
    assert like is not None
    assert module_label(path) == alone
    assert module_label(like) == together
    assert str(Held(1 << 20, 16, None, like)).endswith(f", in {together}")


def evidence(model: "torch.nn.Module") -> str:
    gc.collect()  # models of other tests in this process are none of this job
    with virtual_session(target_of("a100-40gb")) as session:
        model.cuda()
        profile = build([session.snapshot()])
    claim = parameters_dominate.diagnose(Case(profile=profile.devices[0]), loader.thresholds()["OOM001"])
    assert claim is not None
    return "\n".join(claim.evidence)


def test_a_table_is_guessed_of_many_rows_far_above_the_rest() -> None:
    text = evidence(torch.nn.Sequential(torch.nn.Embedding(50_000, 256), torch.nn.Linear(256, 256)))
    assert "one weight alone (50,000 x 256)" in text
    assert "a vocabulary table?" in text


def test_a_square_or_a_wide_weight_is_no_table() -> None:
    square = evidence(torch.nn.Sequential(torch.nn.Linear(1024, 1024)))
    assert "one weight alone (1,024 x 1,024)" in square
    assert "vocabulary" not in square
    assert "vocabulary" not in evidence(torch.nn.Sequential(torch.nn.Linear(100_000, 16)))


def test_weights_of_like_size_are_not_alone() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.Linear(512, 3000))
    assert "one weight alone" not in evidence(layers)
