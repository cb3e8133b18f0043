"""The ranks of a job side by side: a world of 1,024 whose summaries the virtual GPU made."""

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from oomdoc.cli.rank_files import chosen, ranks_in
from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.profile import build
from oomdoc.diagnosers.ranks import RankSummary, merge, summarise
from oomdoc.errors import OomdocError
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.recorders.summary import dumps, read
from oomdoc.reports import build as reports
from oomdoc.reports import json as as_json
from oomdoc.reports import terminal
from oomdoc.snapshots import reader

SCHEMA = json.loads((Path(__file__).parents[2] / "configs" / "report.schema.json").read_text(encoding="utf-8"))
# a pipeline of two stages: the second has the head, and its ranks hold more
STAGE = """\
import sys
import torch

width, batch, head = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"
layers = [torch.nn.Linear(width, width) for _ in range(4)]
model = torch.nn.Sequential(*layers, *([torch.nn.Linear(width, 8 * width)] if head else [])).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(batch, width, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WORLD, STAGES = 1024, 2
FAILS = 700


def summary_of(folder: Path, *words: str, capacity: int = 8 << 30) -> RankSummary:
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(STAGE)
    spec = RunSpec(script=str(script), args=words, run_dir=folder, gpu="a100-40gb", capacity_bytes=capacity)
    result = run(spec)
    diagnosis = diagnose(build([reader.load(result.snapshots[0])]))
    found = summarise(diagnosis, oom_time=1_000.0 if result.out_of_memory else None, host="")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of 1,024 ranks on 128 nodes: two stages, one rank out of memory, two on one card."""
    folder = tmp_path_factory.mktemp("world")
    first = summary_of(folder / "a", "1024", "4096", "0")
    second = summary_of(folder / "b", "1024", "4096", "1")
    longer = summary_of(folder / "c", "1024", "409600", "1", capacity=4 << 30)
    assert longer.out_of_memory
    out = folder / "out"
    out.mkdir()
    noise = random.Random(7)
    for rank in range(WORLD):
        base = longer if rank in (FAILS, 900) else first if rank < WORLD // STAGES else second
        spread = noise.randrange(0, base.held_bytes // 200)
        card = 0 if rank == 9 else rank % 8
        made = replace(
            base, rank=rank, world_size=WORLD, host=f"node{rank // 8:03d}", card=f"GPU-{rank // 8}-{card}",
            stage=second.stage if base is longer else base.stage,
            requested_bytes=base.requested_bytes + spread,
            reserved_bytes=(base.reserved_bytes or 0) + spread,
            oom_time=1_000.0 if rank == FAILS else 1_030.0 if rank == 900 else None,
        )  # fmt: skip
        if rank != 77:  # killed
            (out / f"rank{rank}.summary.json").write_text(dumps(made))
    return out


def test_a_thousand_summaries_merge_in_seconds_and_say_what_matters(world: Path) -> None:
    began = time.process_time()
    ranks = ranks_in(world)
    took = time.process_time() - began
    assert took < 10
    assert ranks is not None
    assert (ranks.world_size, ranks.missing, len(ranks.summaries)) == (WORLD, 1, WORLD - 1)
    assert ranks.first is not None
    assert ranks.first.rank == FAILS
    assert [len(stage.ranks) for stage in ranks.stages] == [WORLD // 2 - 1, WORLD // 2]
    assert ranks.stages[1].highest_rank in (FAILS, 900)
    assert set(ranks.stages[1].above) == {FAILS, 900}
    assert ranks.stages[0].above == ()
    assert ranks.shared == (("GPU-1-0 on node001", (8, 9)),)
    told = " | ".join(ranks.told)
    assert f"rank {FAILS} (node087) ran out of memory first" in told
    assert "the next (rank 900) 30.0 s later" in told
    assert "ranks 8 to 9 use one card together" in told
    assert "2 groups of ranks hold different modules" in told
    assert "1 of 1024 ranks left no summary" in told
    assert max(path.stat().st_size for path in world.iterdir()) < 16_384
    print(f"\n1,024 summaries: {took:.2f} s of one core")  # noqa: T201


def test_the_report_of_many_ranks_names_the_first_that_failed(world: Path) -> None:
    """Also where no snapshot was kept; the JSON follows the schema, with a row for each rank."""
    ranks = ranks_in(world)
    assert ranks is not None
    report = reports.build(diagnose(build([])), path="out", ranks=ranks)
    content: dict[str, Any] = json.loads(as_json.render(report))
    jsonschema.validate(content, SCHEMA, jsonschema.Draft202012Validator)
    assert (content["verdict"]["out_of_memory"], content["verdict"]["rank"]) == (True, FAILS)
    assert len(content["ranks"]["rows"]) == WORLD - 1
    shown = terminal.render(report, width=120)
    assert "Ranks (1023 of 1024)" in shown
    assert len(shown.splitlines()) < 60


def test_of_many_snapshots_those_that_show_most_are_read(world: Path) -> None:
    ranks = ranks_in(world)
    files = [Path(f"rank{rank}.pickle") for rank in range(WORLD)]
    picked = chosen(files, ranks)
    assert picked[0] == Path(f"rank{FAILS}.pickle")
    assert 2 <= len(picked) <= 3
    assert chosen(files[:3], ranks) == files[:3]
    assert chosen(files, None) == files


def test_one_rank_alone_and_no_rank_at_all() -> None:
    assert merge([]) is None
    one = merge([RankSummary(rank=0, world_size=2, requested_bytes=5)])
    assert one is not None
    assert (one.first, one.missing, one.shared) == (None, 1, ())


def test_a_file_that_is_no_summary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank0.summary.json"
    for text in ("", "[]", '{"schema": "oomdoc.summary/9"}', '{"schema": "oomdoc.summary/1", "rank": 1}'):
        path.write_text(text)
        with pytest.raises(OomdocError, match=r"rank0\.summary\.json is no rank's summary"):
            read(path)
