"""Apart from the rest of the interface, for the command line: its help starts without numpy."""

from enum import Enum


class Metric(str, Enum):
    """Which peak the limits are for."""

    ALLOCATED = "allocated"  # torch.cuda.max_memory_allocated
    RESERVED = "reserved"  # torch.cuda.max_memory_reserved
    REQUESTED = "requested"  # what the tensors asked for
