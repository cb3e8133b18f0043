"""Keep the optimizer's state on NVMe drives, through host memory: for a state that host memory does not hold either.

Applies when: the optimizer's state is a large share of the peak, and offloading it to host memory is not enough.
Saves: the state and its step's temporaries, as offloading to the host does; and host memory.
Costs: the state is read and written in every step at the drives' rate, which is less than PCIe's.
Numerics: identical.
Conflicts: needs DeepSpeed's asynchronous I/O (libaio) and a fast local drive on each node; ranks of a node share it.
Frameworks: DeepSpeed `zero_optimization.offload_optimizer: {device: nvme, nvme_path: ...}` with ZeRO stage 3.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .costs.links import table
from .costs.transfer import drive_factor
from .cpu_offload import change as to_host
from .cpu_offload import settings as host_settings
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting

NAME = "nvme-offload"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REWORK
_STATE = {"what": ["optimizer_state"]}


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    found = host_settings(case)
    if isinstance(found, NotApplicable) or not any(each.options["what"] == _STATE["what"] for each in found):
        return NotApplicable(NAME, "no optimizer state is in the trace")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    found = to_host(case, _STATE)
    if isinstance(found, NotApplicable):
        return NotApplicable(NAME, found.reason)
    state = sum(each.state_bytes for each in case.facts.optimizers) or case.facts.parameter_bytes * 2
    return replace(
        found,
        setting=Setting(name=NAME),
        step_time_factor=drive_factor(case, state),
        why=found.why.replace("host memory", "NVMe") + f"; {table()['nvme']['title']}",
        time_doubt="from one drive for each GPU to one that all GPUs of a node share",
    )
