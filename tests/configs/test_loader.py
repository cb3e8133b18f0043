"""configs.loader: every card is complete, names are found, and sizes mean what they say."""

import pytest
from oomdoc.configs import loader
from oomdoc.errors import OomdocError

GIB = 2**30
# The capacity on the data sheet, which the driver never reports in full.
DATA_SHEET_GIB = {
    "rtx-3060-12gb": 12, "rtx-3070-8gb": 8, "rtx-3090": 24, "rtx-4060-8gb": 8, "rtx-4090": 24, "rtx-5090": 32,
    "rtx-a6000": 48, "rtx-6000-ada": 48, "t4": 16, "v100-16gb": 16, "v100-32gb": 32, "l4": 24, "l40s": 48, "a10g": 24,
    "a100-40gb": 40, "a100-80gb": 80, "a100-80gb-pcie": 80, "h100-80gb": 80, "h100-80gb-pcie": 80, "h100-nvl": 94,
    "gh200": 96, "h200": 141, "b200": 192,
}  # fmt: skip


@pytest.mark.parametrize("name", DATA_SHEET_GIB)
def test_every_card_has_numbers_that_can_be_true(name: str) -> None:
    """Total is at most the data sheet and at least 90 % of it; the context is 0.05 to 1.2 GiB; sources are named."""
    spec = loader.gpu(name)
    assert 0.9 * DATA_SHEET_GIB[name] <= spec.total_bytes / GIB <= DATA_SHEET_GIB[name]
    assert 0.05 <= spec.context_bytes / GIB <= 1.2
    assert spec.total_source
    assert spec.context_source
    assert spec.spec_source
    assert spec.threads_per_sm in (1024, 1536, 2048)


def test_the_table_above_names_every_card() -> None:
    """A card added to gpus.yaml has to be added to this test."""
    assert set(loader.gpus()) == set(DATA_SHEET_GIB)


def test_tensor_core_rates_follow_the_architecture() -> None:
    """bf16 exists from sm_80, fp8 from sm_89; a narrower type is never slower than a wider one."""
    for spec in loader.gpus().values():
        assert ("bf16" in spec.flops) == (spec.compute_capability >= (8, 0))
        assert ("fp8" in spec.flops) == (spec.compute_capability >= (8, 9))
        rates = [spec.flops[dtype] for dtype in ("fp32", "tf32", "fp16", "fp8") if dtype in spec.flops]
        assert rates == sorted(rates)


@pytest.mark.parametrize("alias", ["A100-SXM4-40GB", "a100_40gb", "NVIDIA A100-SXM4-40GB", "a100-40GB"])
def test_names_are_found_however_they_are_written(alias: str) -> None:
    """The driver's name, an alias, upper case and underscores lead to the same card."""
    assert loader.gpu(alias).name == "a100-40gb"


def test_no_alias_leads_to_two_cards() -> None:
    """An alias that two entries claim would make the second one unreachable."""
    claimed: dict[str, str] = {}
    for name, entry in loader._raw_gpus().items():
        for alias in {name, loader._normal(entry["title"]), *map(loader._normal, entry.get("aliases", ()))}:
            assert claimed.setdefault(alias, name) == name


def test_a_family_name_asks_which_card() -> None:
    """`A100` could be three cards with different capacities: guessing would give a wrong number."""
    with pytest.raises(OomdocError, match="choose a100-40gb, a100-80gb or a100-80gb-pcie"):
        loader.gpu("A100")


def test_an_unknown_name_lists_near_matches() -> None:
    """A typing error is answered with what was meant."""
    with pytest.raises(OomdocError, match=r"did you mean .*h100-80gb"):
        loader.gpu("h100-80g")


def test_a_name_far_from_any_lists_them_all() -> None:
    """Nothing near: the whole list."""
    with pytest.raises(OomdocError, match=r"known: rtx-3060-12gb, .* b200"):
        loader.gpu("xyzzy")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("24GiB", 24 * GIB), ("24 GiB", 24 * GIB), ("24gb", 24 * 10**9), ("81089 MiB", 81089 * 2**20), ("512", 512),
     ("0.5GiB", GIB // 2), (7, 7)],
)  # fmt: skip
def test_sizes(text: str | int, expected: int) -> None:
    """GiB is 1024**3 and GB is 1000**3, as the units say."""
    assert loader.parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "24 apples", "-1GiB", "1e9", "24 GiB free"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """The message shows how a size is written."""
    with pytest.raises(OomdocError, match="24GiB"):
        loader.parse_size(text)
