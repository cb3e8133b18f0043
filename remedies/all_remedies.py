"""Every remedy by name. A new one: its file, one line here, its test."""

from . import (
    activation_checkpointing,
    allocator_settings,
    chunked_loss,
    cpu_offload,
    detach_retained_graph,
    fsdp,
    fused_optimizer,
    gradient_accumulation,
    hsdp,
    mixed_precision,
    no_grad_evaluation,
    smaller_batch,
)
from .estimating import Remedy

# In the order in which they are combined: what changes sizes comes before what changes lifetimes.
REMEDIES: dict[str, Remedy] = {
    "detach-retained-graph": detach_retained_graph,
    "no-grad-evaluation": no_grad_evaluation,
    "fused-optimizer": fused_optimizer,
    "mixed-precision": mixed_precision,
    "chunked-loss": chunked_loss,
    "activation-checkpointing": activation_checkpointing,
    "gradient-accumulation": gradient_accumulation,
    "smaller-batch": smaller_batch,
    "fsdp": fsdp,
    "hsdp": hsdp,
    "cpu-offload": cpu_offload,
    "allocator-settings": allocator_settings,
}
