"""What every recorder knows of categories: which role wins, what a phase allocates, which files ask for collectives.

Categories are indices into `diagnosers.interface.CATEGORIES`; -1 = not known.
"""

from ..diagnosers.interface import CATEGORIES, Category
from ..snapshots.model import Stacks

_STRENGTH = [
    CATEGORIES.index(each.value)
    for each in (
        Category.UNKNOWN,
        Category.TEMPORARY,
        Category.ACTIVATION,
        Category.KV_CACHE,
        Category.INPUT,
        Category.WORKSPACE,
        Category.AUTOCAST_CACHE,
        Category.COMMUNICATION,
        Category.BUFFER,
        Category.GRADIENT,
        Category.OPTIMIZER_STATE,
        Category.PARAMETER,
    )
]
# The category of an allocation is the strongest role that any tensor on it ever had.
RANK = {-1: -1, **{category: rank for rank, category in enumerate(_STRENGTH)}}

ACTIVATION = CATEGORIES.index(Category.ACTIVATION.value)
TEMPORARY = CATEGORIES.index(Category.TEMPORARY.value)
COMMUNICATION = CATEGORIES.index(Category.COMMUNICATION.value)
# What a collective's buffer may have been taken for before its stack was looked at.
WEAKER_THAN_COMMUNICATION = [-1, ACTIVATION, TEMPORARY, CATEGORIES.index(Category.INPUT.value)]

# An allocation asked for by these files of torch is a buffer of a collective (all-gather, reduce-scatter, DDP bucket),
# unless it turns out to be a parameter, gradient or state.
_COLLECTIVES = (
    "torch/distributed/fsdp/",
    "torch/distributed/_composable/",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/algorithms/ddp_comm_hooks/",
    "torch/nn/parallel/distributed.py",
)


# Where FSDP1 gives the flat parameter its memory: what asked for it is further out.
_RESIZING = ("torch/storage.py", "torch/distributed/utils.py")


def asked_by_collective(stacks: Stacks) -> list[bool]:
    """For each stack, whether its innermost frame is a collective's; one more entry, for index -1: no stack."""
    files = [each.filename.replace("\\", "/") for each in stacks.frames]
    frames = [any(part in file for part in _COLLECTIVES) for file in files]
    resizing = [file.endswith(_RESIZING) for file in files]
    asking = [next((frame for frame in stack if not resizing[frame]), -1) for stack in stacks.stacks]
    return [*(at >= 0 and frames[at] for at in asking), False]
