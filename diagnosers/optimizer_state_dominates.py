"""The optimizer's state takes most of the memory.

What it means
    Adam keeps two moments per parameter, SGD with momentum one. They are made inside the first `step()`, so a run
    that passes step 1 can run out in step 2.

Evidence used
    Recorded categories; in a bare snapshot blocks born in an optimizer's step that outlive it, and copies of the
    parameters' size multiset. State bytes per parameter byte are printed: 2.0 is Adam in the parameters' own dtype,
    4.0 is fp32 state beside bf16 parameters. With the recorded shape of the largest parameter: whether most of the
    state belongs to an embedding that no linear layer shares.

Example
    VGG16 with Adam: 528 MiB of weights, 1.03 GiB of state; batch 8 trains with SGD and fails at the second
    iteration with Adam (pytorch issue 9439).

Known limits
    8-bit, factored and sharded states are counted as the bytes they have; they are no longer a copy of the
    parameters, so in a bare snapshot without frames they are unknown rather than guessed.

What the remedies change
    fsdp divides it by the number of ranks, cpu-offload moves it to the host. A smaller batch does nothing.
    sparse-gradients: for a large embedding, `nn.Embedding(..., sparse=True)`: its gradient has the rows of the batch
    alone. torch.optim.SparseAdam keeps dense moments still, SGD none; an optimizer with one value per row (row-wise
    Adagrad, as torchrec's and FBGEMM's), or a table on the host, is what saves the state.
    eight-bit-optimizer: one that keeps its state in one byte each (bitsandbytes, torchao) in place of four.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim
from .judging import bytes_of, claim, is_largest, share
from .lookup_table import lookup_table
from .text import moment, percent, size

CODE = "OOM003"
NAME = "optimizer-state-dominates"
REMEDIES = ("fsdp", "cpu-offload", "eight-bit-optimizer", "sparse-gradients")
GENERAL = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.OPTIMIZER_STATE)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"] or not is_largest(case, total):
        return None
    parameters = case.profile.bytes_of(Category.PARAMETER)
    evidence = ["made inside optimizer.step, once; a smaller batch leaves these bytes as they are"]
    if parameters:
        evidence.append(f"{total / parameters:.2f} bytes of state per byte of parameters")
    title = f"The optimizer's state holds {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    remedies: tuple[str, ...] = REMEDIES[:-1]
    table = lookup_table(case.profile, thresholds["table_rows_per_column"])
    mine = bytes_of(b for b in blocks.values() if table is not None and b.requested_bytes == table.bytes)
    if table is not None and mine >= thresholds["table_share"] * total:
        remedies = (REMEDIES[-1], *remedies)
        evidence.append(
            f"{percent(mine / total)} of it belongs to one table ({table.rows:,} x {table.columns:,}) that is only"
            " looked up: a step reads few of its rows, and its gradient and state have them all"
        )
    return claim(case, blocks, title, thresholds, evidence, remedies)
