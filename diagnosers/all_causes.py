"""Every cause by its code, in the order in which they may blame bytes: the most specific first.

To add one: a file of its own, a section in configs/thresholds.yaml, one line here, one test file.
"""

from typing import cast

from . import (
    activations_dominate,
    attention_scores,
    autocast_copies,
    checkpoint_spike,
    communication_buffers,
    evaluation_outputs,
    fragmentation,
    gradients_dominate,
    graph_pools,
    graph_without_backward,
    growing_references,
    idle_gradients,
    idle_model,
    input_data,
    kv_cache,
    leaked_graph,
    logits_spike,
    model_copies,
    optimizer_state_dominates,
    optimizer_step_temporaries,
    outlier_batch,
    outside_allocator,
    parameters_dominate,
    pending_frees,
    previous_graph,
    rank_imbalance,
    reference_cycle,
    request_exceeds_card,
    temporaries_dominate,
    workspaces,
)
from .interface import Diagnoser

DIAGNOSERS: dict[str, Diagnoser] = {
    code: cast(Diagnoser, module)
    for code, module in {
        "OOM012": request_exceeds_card,
        "OOM013": outside_allocator,
        "OOM026": graph_pools,
        "OOM030": reference_cycle,
        "OOM006": leaked_graph,
        "OOM014": growing_references,
        "OOM025": evaluation_outputs,
        "OOM005": fragmentation,
        "OOM020": pending_frees,
        "OOM027": checkpoint_spike,
        "OOM011": graph_without_backward,
        "OOM015": previous_graph,
        "OOM021": outlier_batch,
        "OOM007": optimizer_step_temporaries,
        "OOM022": idle_gradients,
        "OOM008": logits_spike,
        "OOM009": attention_scores,
        "OOM010": autocast_copies,
        "OOM018": communication_buffers,
        "OOM017": kv_cache,
        "OOM016": input_data,
        "OOM019": workspaces,
        "OOM023": model_copies,
        "OOM029": idle_model,
        "OOM028": rank_imbalance,
        # what is left, by category
        "OOM004": activations_dominate,
        "OOM003": optimizer_state_dominates,
        "OOM001": parameters_dominate,
        "OOM002": gradients_dominate,
        "OOM024": temporaries_dominate,
    }.items()
}
