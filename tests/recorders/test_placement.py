"""Which launcher made this process one rank of many, from its variables alone."""

import pytest
from oomdoc.errors import OomdocError
from oomdoc.recorders.placement import placement
from oomdoc.recorders.triggers import Due, parse

TORCHRUN = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "job/7", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, ("torchrun", 3, 1, 4, "job_7", 2)),
        (SRUN, ("srun", 5, 1, 8, "42-0", 0)),
        ({**SRUN, **TORCHRUN}, ("torchrun", 3, 1, 4, "job_7", 2)),  # srun started torchrun
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "p-1"},
            ("mpirun", 1, 1, 2, "p-1", 0),
        ),
        (
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "n0",
             "MASTER_PORT": "29500"},
            ("a launcher", 0, 0, 16, "n0-29500", 0),
        ),
    ],
)  # fmt: skip
def test_each_launcher_is_known_by_its_variables(
    environment: dict[str, str], expected: tuple[str, int, int, int, str, int]
) -> None:
    found = placement(environment)
    assert found is not None
    assert (found.launcher, found.rank, found.local_rank, found.world_size, found.job, found.restarts) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "42", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # the batch script, before any srun
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
    ],
)
def test_a_process_of_its_own_has_no_place(environment: dict[str, str]) -> None:
    assert placement(environment) is None


def test_the_start_of_one_node_without_an_id_is_its_launcher() -> None:
    """torchrun's id is "none" unless it is given: two starts on one port are not one job."""
    one = {**TORCHRUN, "RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
    found, again = placement(one), placement({**one, "RANK": "2"})
    assert found is not None
    assert again is not None
    assert found.job == again.job != "none"


def test_dumps_by_step_by_request_and_by_time() -> None:
    triggers = parse("steps:3,10 requests:100 every:5m")
    assert (triggers.steps, triggers.requests, triggers.every_seconds) == ({3, 10}, {100}, 300)
    due = Due(triggers)
    assert [step for step in range(12) if due.step(step)] == [3, 10]
    assert [number for number in (99, 100, 100, 101) if due.request(number)] == [100]
    assert not due.now()
    assert Due(parse("every:0s")).now()
    for wrong in ("steps:", "steps:a", "steps:1,", "every:x", "sometimes"):
        with pytest.raises(OomdocError, match="--dump"):
            parse(wrong)
