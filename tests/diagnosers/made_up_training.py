"""Made-up jobs for the causes of training itself: OOM001 to OOM009.

The own case of a cause (`@own(CODE)`: it comes first) and a near miss (`@near(CODE)`: it stays silent).
"""

import contextlib

from oomdoc.allocator.machine import OutOfMemory
from oomdoc.snapshots.model import Snapshot

from .made_up import UNIT, Kit, near, own


@own("OOM001")
def a_model_larger_than_the_card(kit: Kit) -> Snapshot:
    return kit.Training(capacity=200 * UNIT, layers=40).run().snapshot()


@near("OOM001")
def weights_are_a_fifth(kit: Kit) -> Snapshot:
    return kit.Training(capacity=250 * UNIT, activation=16 * UNIT).run().snapshot()


@own("OOM002")
def a_list_of_gradients_per_micro_batch(kit: Kit) -> Snapshot:
    job = kit.Training(capacity=300 * UNIT, activation=UNIT // 2, logits=UNIT)
    with contextlib.suppress(OutOfMemory):
        job.build()
        for _ in range(8):
            job.backward(job.forward())
            job.gradients = []  # autograd.grad appended to a list: the next backward makes new ones
    return job.snapshot()


@near("OOM002")
def gradients_are_made_once(kit: Kit) -> Snapshot:
    return kit.Training(capacity=220 * UNIT, activation=8 * UNIT).run().snapshot()


@own("OOM003")
def adam_fits_until_its_state_is_there(kit: Kit) -> Snapshot:
    return kit.Training(capacity=210 * UNIT, activation=3 * UNIT, logits=UNIT).run().snapshot()


@near("OOM003")
def plain_sgd(kit: Kit) -> Snapshot:
    return kit.Training(capacity=180 * UNIT, activation=8 * UNIT, moments=0).run().snapshot()


@own("OOM004")
def a_batch_too_large(kit: Kit) -> Snapshot:
    return kit.Training(capacity=400 * UNIT, activation=24 * UNIT).run().snapshot()


@near("OOM004")
def activations_are_small(kit: Kit) -> Snapshot:
    return kit.Training(capacity=190 * UNIT, activation=UNIT, logits=UNIT).run().snapshot()


def _pinned(kit: Kit, request: int) -> Snapshot:
    """A big buffer per round, and small tensors that settle in it when it is free."""
    job = kit.Job(capacity=400 * UNIT)
    big = job.alloc(300 * UNIT, kit.script(50))
    job.free(big, kit.script(51))
    small = [job.alloc(6 * UNIT, kit.script(52)) for _ in range(40)]
    job.free(small[::2], kit.script(53))
    with contextlib.suppress(OutOfMemory):
        job.alloc(request, kit.script(50))
    return job.snapshot()


@own("OOM005")
def small_tensors_pin_a_large_segment(kit: Kit) -> Snapshot:
    return _pinned(kit, 160 * UNIT)


@near("OOM005")
def more_than_all_that_is_free(kit: Kit) -> Snapshot:
    job = kit.Job(capacity=400 * UNIT)
    with contextlib.suppress(OutOfMemory):
        for _ in range(100):
            job.alloc(30 * UNIT, kit.MOVE)
    return job.snapshot()


@own("OOM006")
def a_validation_loss_is_summed_with_its_graph(kit: Kit) -> Snapshot:
    return kit.Training(capacity=700 * UNIT, keep_loss=True).run(steps=20).snapshot()


@near("OOM006")
def only_the_last_graph_is_kept(kit: Kit) -> Snapshot:
    return kit.Training(capacity=1 << 40, keep_previous=True).run(steps=8).snapshot()


@own("OOM007")
def foreach_makes_a_copy(kit: Kit) -> Snapshot:
    return kit.Training(capacity=240 * UNIT, activation=UNIT, logits=UNIT, foreach=True).run().snapshot()


@near("OOM007")
def one_parameter_at_a_time(kit: Kit) -> Snapshot:
    return kit.Training(capacity=240 * UNIT, activation=UNIT, logits=UNIT, foreach=False).run().snapshot()


@own("OOM008")
def a_vocabulary_too_many(kit: Kit) -> Snapshot:
    return kit.Training(capacity=220 * UNIT, activation=UNIT, logits=96 * UNIT).run().snapshot()


@near("OOM008")
def small_logits_large_blocks(kit: Kit) -> Snapshot:
    return kit.Training(capacity=300 * UNIT, activation=16 * UNIT, logits=UNIT).run().snapshot()


@own("OOM009")
def scores_are_kept(kit: Kit) -> Snapshot:
    return kit.Training(capacity=300 * UNIT, activation=UNIT, scores=24 * UNIT).run().snapshot()


@near("OOM009")
def fused_attention(kit: Kit) -> Snapshot:
    return kit.Training(capacity=300 * UNIT, activation=24 * UNIT, scores=0).run().snapshot()
