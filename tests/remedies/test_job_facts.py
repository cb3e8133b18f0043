"""The facts of a job survive the way from live objects to a recording and back."""

from typing import Any

import torch
from oomdoc.recorders.batches import Batches
from oomdoc.recorders.facts import describe
from oomdoc.remedies.job_facts import JobFacts, read
from oomdoc.snapshots.model import Recording


def _recording(facts: dict[str, Any]) -> Recording:
    return Recording(
        schema="oomdoc.recording/1",
        kind="virtual",
        argv=(),
        versions={},
        gpu=None,
        capacity_bytes=None,
        outside_bytes=None,
        rank=0,
        world_size=1,
        categories=(),
        modules=(),
        devices={},
        facts=facts,
    )


def test_parameters_blocks_and_state_are_those_of_the_model() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 16), torch.nn.TransformerEncoder(layer, 3))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.zeros(2, 4, dtype=torch.int64)).sum().backward()
    optimizer.step()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(12, 4)), batch_size=6)

    facts = read(_recording(describe([model], [optimizer])))

    size = 4 * sum(p.numel() for p in model.parameters())
    assert facts.known
    assert facts.parameter_bytes == facts.trainable_bytes == size
    assert facts.blocks == ("1.layers.0", "1.layers.1", "1.layers.2")
    assert facts.block_classes == ("TransformerEncoderLayer",)
    assert facts.bytes_below("1.layers.1") == 4 * sum(p.numel() for p in layer.parameters())
    assert facts.bytes_below("Sequential") == 0
    assert facts.class_of["1.layers.0.linear1"] == "Linear"
    assert facts.optimizers[0].state_bytes == 2 * size
    assert facts.optimizers[0].foreach is False
    assert facts.loader_batch_size == loader.batch_size
    assert facts.bytes_of_dtype == {"float32": size}


def _stages(*widths: int) -> torch.nn.Module:
    class Block(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.parts = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU())

    class Stage(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))

    return torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ModuleList(map(Stage, widths)))


def test_of_stages_that_differ_the_blocks_inside_are_the_blocks() -> None:
    """A ResNet, a Swin; layers that are alike are blocks, whatever lists (of experts) they have inside."""
    assert describe([_stages(2, 4, 8)], [])["blocks"] == [f"1.{s}.blocks.{b}" for s in range(3) for b in range(2)]
    assert describe([_stages(4, 4, 4)], [])["blocks"] == ["1.0", "1.1", "1.2"]


def test_a_loader_that_nothing_was_drawn_from_yet_is_found() -> None:
    class Many(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 1 << 40

    loader = torch.utils.data.DataLoader(Many(), batch_size=7)
    facts = read(_recording(describe([torch.nn.Linear(2, 2)], [])))
    assert facts.loader_batch_size == loader.batch_size == 7


def test_a_loader_that_went_with_its_loop_was_seen_when_batches_were_drawn() -> None:
    batches = Batches()
    with batches.install():
        for _ in torch.utils.data.DataLoader(range(12), batch_size=4):  # type: ignore[arg-type]
            pass
        for _ in torch.utils.data.DataLoader(range(6), batch_size=6):  # type: ignore[arg-type]  # of an evaluation
            pass
    assert read(_recording(describe([torch.nn.Linear(2, 2)], [], batches.loader))).loader_batch_size == 4


def test_a_snapshot_without_facts_has_none() -> None:
    assert read(None) == JobFacts()
    assert read(_recording({})) == JobFacts()
    assert read(_recording({"modules": {"a": "B"}, "parameters": {"count": "many"}})) == JobFacts()


def test_a_module_whose_class_fully_shard_made_need_not_be_sharded_itself() -> None:
    """As a copy by `copy.copy`, or one whose group is gone: torch raises where it is asked for its state."""

    class Sharded(torch.nn.Linear):
        def _get_fsdp_state(self) -> object:
            raise AssertionError("No FSDP state found")

    parameters = describe([Sharded(2, 2)], [])["parameters"]
    assert isinstance(parameters, dict)
    assert parameters["gathered_dtype"] is None
