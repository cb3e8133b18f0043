"""Parameters take most of the memory.

What it means
    The weights themselves are the largest thing on the card. Their bytes do not depend on the batch or the sequence
    length, so a smaller batch does not help.

Evidence used
    Recorded categories; in a bare snapshot the frames that built or moved the model, and the multiset of block sizes
    that gradients and moments repeat. A single weight far above the rest is named, with its shape where that was
    recorded: one table of many rows (a vocabulary of whole words, say) is often most of a model.

Example
    A dictionary of 1,160,247 words x 512 in fp32 is 2.2 GiB, three times with encoder, decoder and output, and
    as much again for their gradients: no batch size fits 11 GB (fairseq issue 323).

Known limits
    Without frames a KV cache or a data set that is made once and never freed looks like weights. Quantised weights
    count as the bytes they have. Which model of several a weight belongs to is known only with recorded modules.

What the remedies change
    fsdp divides the weights (and what depends on them) by the number of ranks; mixed precision of the stored weights
    halves them; cpu-offload moves them. For inference, cast the model once instead of using autocast.
"""

from collections.abc import Mapping

from .interface import Case, Category, Claim, DeviceProfile
from .judging import bytes_of, claim, is_largest, share
from .lookup_table import largest_matrix
from .text import moment, percent, size

CODE = "OOM001"
NAME = "parameters-dominate"
REMEDIES = ("fsdp", "mixed-precision", "cpu-offload")
GENERAL = True


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    blocks = case.live(Category.PARAMETER, Category.BUFFER)
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    if part < thresholds["min_share"] or not is_largest(case, total):
        return None
    evidence = [f"{len(blocks)} weights and buffers; a smaller batch leaves these bytes as they are"]
    evidence += _one_table(case.profile, {block.requested_bytes for block in blocks.values()}, total, thresholds)
    title = f"Parameters hold {size(total)}, {percent(part)} of what was live {moment(case.profile)}"
    return claim(case, blocks, title, thresholds, evidence)


def _one_table(profile: DeviceProfile, sizes: set[int], total: int, thresholds: Mapping[str, float]) -> list[str]:
    """One weight far above the rest, and whether its recorded shape is that of a table."""
    largest, *rest = sorted(sizes, reverse=True)
    if largest < thresholds["one_table_share"] * total:
        return []
    if not rest or largest < thresholds["one_table_ratio"] * rest[0]:
        return []
    table = largest_matrix(profile)
    if table is None or table.bytes != largest:
        return [f"one weight alone has {size(largest)}, {percent(largest / total)} of them"]
    guess = ": a vocabulary table?" if table.rows >= thresholds["table_rows_per_column"] * table.columns else ""
    shape = f"({table.rows:,} x {table.columns:,})"
    return [f"one weight alone {shape} has {size(largest)}, {percent(largest / total)} of them{guess}"]
