"""Made-up jobs for the other causes: OOM010 and on.

The own case of a cause (`@own(CODE)`: it comes first) and a near miss (`@near(CODE)`: it stays silent).
"""

import contextlib

from oomdoc.allocator.machine import OutOfMemory
from oomdoc.snapshots.model import Frame, Snapshot

from .made_up import UNIT, Kit, near, own


def _cast(kit: Kit, cast_bytes: int, **card: int) -> Snapshot:
    cast = Frame("??", 0, "at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)")
    job = kit.Training(**card)
    job.build()
    with contextlib.suppress(OutOfMemory):
        for _ in range(3):
            copies = [job.alloc(cast_bytes, kit.model(11, "forward", cast)) for _ in range(12)]
            last = job.alloc(4096, kit.model(12))
            leave = kit.script(60, Frame(kit.TORCH + "amp/autocast_mode.py", 360, "__exit__"))
            job.free([*copies, last], leave)
    return job.snapshot()


@own("OOM010")
def weights_are_cast_for_inference(kit: Kit) -> Snapshot:
    return _cast(kit, 2 * UNIT, capacity=71 * UNIT)


@near("OOM010")
def only_inputs_are_cast(kit: Kit) -> Snapshot:
    return _cast(kit, 3 * UNIT // 4)


@own("OOM011")
def inference_with_gradients_on(kit: Kit) -> Snapshot:
    job = kit.Training(activation=8 * UNIT)
    job.build()
    for _ in range(3):
        job.free(job.forward(), kit.script(40))
    return job.snapshot()


@near("OOM011")
def inference_without(kit: Kit) -> Snapshot:
    job = kit.Training()
    job.build()
    for _ in range(3):
        before = job.alloc(8 * UNIT, kit.model(10))
        for line in range(11, 60):
            after = job.alloc(8 * UNIT, kit.model(line))
            job.free(before, kit.model(line))
            before = after
        job.free(before, kit.script(40))
    return job.snapshot()


@own("OOM012")
def one_request_for_more_than_the_card(kit: Kit) -> Snapshot:
    job = kit.Training(capacity=600 * UNIT, outside=1 << 30)
    with contextlib.suppress(OutOfMemory):
        job.build()
        job.alloc(700 * UNIT, kit.model(30))
    return job.snapshot()


@near("OOM012")
def a_request_for_less_than_the_card(kit: Kit) -> Snapshot:
    job = kit.Training(capacity=600 * UNIT, outside=1 << 30)
    with contextlib.suppress(OutOfMemory):
        job.build()
        job.alloc(590 * UNIT, kit.model(30))
    return job.snapshot()


@own("OOM013")
def another_process_has_the_card(kit: Kit) -> Snapshot:
    return kit.Training(capacity=100 * UNIT, outside=8 << 30).run().snapshot()


@near("OOM013")
def a_context_is_outside(kit: Kit) -> Snapshot:
    return kit.Training(capacity=100 * UNIT, outside=600 << 20).run().snapshot()


@own("OOM014")
def predictions_are_collected(kit: Kit) -> Snapshot:
    return kit.Training(capacity=1 << 40, keep_output=24 * UNIT).run(steps=12).snapshot()


@near("OOM014")
def scalars_are_collected(kit: Kit) -> Snapshot:
    return kit.Training(capacity=1 << 40, keep_output=4).run(steps=12).snapshot()


@own("OOM015")
def the_loop_holds_its_last_outputs(kit: Kit) -> Snapshot:
    return kit.Training(activation=6 * UNIT, keep_previous=True, moments=0).run(steps=3).snapshot()


@near("OOM015")
def the_loop_lets_go(kit: Kit) -> Snapshot:
    return kit.Training(activation=6 * UNIT, moments=0).run(steps=3).snapshot()


def _with_loader(kit: Kit, size: int) -> Snapshot:
    job = kit.Training()
    job.build()
    data = [job.alloc(size, kit.LOADER) for _ in range(4)]
    for number in range(3):
        job.step(number)
    job.free(data, kit.script(90))
    return job.snapshot()


@own("OOM016")
def the_data_set_is_on_the_card(kit: Kit) -> Snapshot:
    return _with_loader(kit, 40 * UNIT)


@near("OOM016")
def four_batches_are_on_the_card(kit: Kit) -> Snapshot:
    return _with_loader(kit, UNIT)


def _generate(kit: Kit, size: int) -> Snapshot:
    update = Frame("/venv/lib/python3.12/site-packages/transformers/cache_utils.py", 119, "update")
    job = kit.Training()
    job.build()
    for _ in range(6):
        last = job.alloc(UNIT, kit.model(10))
        for layer in range(6):
            job.alloc(size, kit.model(20 + layer, "forward", update))
        job.free(last, kit.model(31))
        job.free(job.alloc(4096, kit.script(41)), kit.script(41))
    return job.snapshot()


@own("OOM017")
def a_long_generation(kit: Kit) -> Snapshot:
    return _generate(kit, 3 * UNIT)


@near("OOM017")
def a_short_generation(kit: Kit) -> Snapshot:
    return _generate(kit, 64 << 10)


def _gather(kit: Kit, size: int) -> Snapshot:
    gather = Frame(kit.TORCH + "distributed/fsdp/_fully_shard/_fsdp_param.py", 500, "alloc_all_gather_outputs")
    job = kit.Training(layers=2)
    job.build()
    whole = job.alloc(size, kit.model(9, "forward", gather))
    job.step(0)
    job.free(whole, kit.model(31))
    job.step(1)
    return job.snapshot()


@own("OOM018")
def the_model_is_one_fsdp_unit(kit: Kit) -> Snapshot:
    return _gather(kit, 64 * UNIT)


@near("OOM018")
def one_block_is_gathered(kit: Kit) -> Snapshot:
    return _gather(kit, 4 * UNIT)


def _convolve(kit: Kit, size: int) -> Snapshot:
    plan = Frame("Conv_v8.cpp", 0, "at::native::(anonymous namespace)::run_conv_plan(cudnnContext*, ...)")
    job = kit.Training()
    job.build()
    saved = job.forward()
    job.free(job.alloc(size, kit.model(15, "forward", plan)), kit.model(15))
    job.backward(saved)
    return job.snapshot()


@own("OOM019")
def cudnn_takes_its_fastest_plan(kit: Kit) -> Snapshot:
    return _convolve(kit, 256 * UNIT)


@near("OOM019")
def cudnn_takes_a_little(kit: Kit) -> Snapshot:
    return _convolve(kit, 16 * UNIT)


def _streams(kit: Kit, wait: bool) -> Snapshot:
    job = kit.Training()
    job.allocator.defer_streams = wait
    job.build()
    for _ in range(20):
        buffer = job.alloc(16 * UNIT, kit.script(70))
        job.allocator.record_stream(buffer, 7)
        job.free(buffer, kit.script(71))
        job.free(job.alloc(4096, kit.script(72)), kit.script(72))
    return job.snapshot()


@own("OOM020")
def frees_wait_for_a_stream(kit: Kit) -> Snapshot:
    return _streams(kit, wait=True)


@near("OOM020")
def frees_complete_in_time(kit: Kit) -> Snapshot:
    return _streams(kit, wait=False)


@own("OOM021")
def one_batch_is_four_times_as_long(kit: Kit) -> Snapshot:
    lengths = [1.0, 1.1, 0.9, 1.0, 1.05, 4.0]
    return kit.Training(capacity=420 * UNIT, activation=6 * UNIT, lengths=lengths).run(steps=8).snapshot()


@near("OOM021")
def every_batch_is_long(kit: Kit) -> Snapshot:
    lengths = [1.0, 1.1, 0.9, 1.0, 1.05, 1.3]
    return kit.Training(capacity=318 * UNIT, activation=6 * UNIT, lengths=lengths).run(steps=8).snapshot()


@own("OOM022")
def zero_grad_after_forward(kit: Kit) -> Snapshot:
    job = kit.Training(capacity=270 * UNIT, activation=5 * UNIT, moments=1, zero_late=True)
    return job.run().snapshot()


@near("OOM022")
def zero_grad_after_step(kit: Kit) -> Snapshot:
    return kit.Training(capacity=200 * UNIT, activation=5 * UNIT, moments=1).run().snapshot()


def _copies(kit: Kit, times: int) -> Snapshot:
    copy = (Frame(kit.TORCH + "_tensor.py", 228, "__deepcopy__"), Frame("/usr/lib/python3.11/copy.py", 153, "deepcopy"))
    job = kit.Training()
    job.build()
    for _ in range(times):
        for size in job.sizes:
            job.alloc(size, kit.script(80, *copy))
    for number in range(3):
        job.step(number)
    return job.snapshot()


@own("OOM023")
def three_copies_of_the_model(kit: Kit) -> Snapshot:
    return _copies(kit, 3)


@near("OOM023")
def no_copy(kit: Kit) -> Snapshot:
    return _copies(kit, 0)


def _backward_needs(kit: Kit, size: int) -> Snapshot:
    job = kit.Training(capacity=1 << 40)
    job.build()
    saved = job.forward()
    temporaries = [job.alloc(size, kit.ENGINE) for _ in range(5)]
    job.free(temporaries, kit.ENGINE)
    job.backward(saved)
    job.optimizer_step()
    return job.snapshot()


@own("OOM024")
def backward_needs_five_matrices(kit: Kit) -> Snapshot:
    return _backward_needs(kit, 64 * UNIT)


@near("OOM024")
def backward_needs_little(kit: Kit) -> Snapshot:
    return _backward_needs(kit, 2 * UNIT)


def _evaluate(kit: Kit, keep: int) -> Snapshot:
    """Two steps of training, then an evaluation that keeps something of each batch."""
    job = kit.Training(moments=0)
    job.build()
    for number in range(2):
        job.step(number)
    for _ in range(12):
        output = job.alloc(4 * UNIT, kit.model(30, loop=60))
        job.alloc(keep, kit.script(61))
        job.free(output, kit.script(60))
    return job.snapshot()


@own("OOM025")
def predictions_of_an_evaluation_are_kept(kit: Kit) -> Snapshot:
    return _evaluate(kit, 8 * UNIT)


@near("OOM025")
def an_evaluation_keeps_its_losses(kit: Kit) -> Snapshot:
    return _evaluate(kit, 512)


def _capture(kit: Kit, graphs: int) -> Snapshot:
    job = kit.Training(moments=0)
    job.build()
    for graph in range(graphs):
        job.allocator.hold_pool((0, graph + 1))
        for line in range(11, 15):
            job.alloc(4 * UNIT, kit.model(line, loop=50), pool=(0, graph + 1))
    job.step(0)
    return job.snapshot()


@own("OOM026")
def a_graph_for_every_shape(kit: Kit) -> Snapshot:
    return _capture(kit, 12)


@near("OOM026")
def one_graph(kit: Kit) -> Snapshot:
    return _capture(kit, 1)


def _resume(kit: Kit, size: int) -> Snapshot:
    load = (Frame(kit.TORCH + "serialization.py", 2100, "_load"), Frame(kit.TORCH + "serialization.py", 1500, "load"))
    job = kit.Training(moments=2)
    job.build()
    job.step(0)
    loaded = [job.alloc(size, kit.script(85, *load)) for _ in range(12)]
    job.free(loaded, kit.script(86))
    job.step(1)
    return job.snapshot()


@own("OOM027")
def a_checkpoint_is_read_to_the_card(kit: Kit) -> Snapshot:
    return _resume(kit, 32 * UNIT)


@near("OOM027")
def a_small_checkpoint_is_read(kit: Kit) -> Snapshot:
    return _resume(kit, 2 * UNIT)


def _stages(kit: Kit, factor: int) -> tuple[Snapshot, ...]:
    return tuple(kit.Training(activation=size * UNIT, moments=0).run(3).snapshot() for size in (1, 1, factor, 1))


@own("OOM028")
def one_stage_has_most_in_flight(kit: Kit) -> tuple[Snapshot, ...]:
    return _stages(kit, 40)


@near("OOM028")
def stages_are_alike(kit: Kit) -> tuple[Snapshot, ...]:
    return _stages(kit, 1)


def _with_a_second_model(kit: Kit, used: int) -> Snapshot:
    """Twelve large weights of the model that runs; `used` of the second one's sixteen are called too."""
    own = 6 * (8 * UNIT + 8192)
    job = kit.Training(outside=1 << 30, moments=0, facts={"parameters": {"bytes": own + used * 8 * UNIT}})
    job.build()
    for _ in range(16):
        job.alloc(8 * UNIT, kit.script(33, *kit.MOVE[:2]))
    for number in range(2):
        job.step(number)
    return job.snapshot()


@own("OOM029")
def a_model_waits_for_its_turn(kit: Kit) -> Snapshot:
    return _with_a_second_model(kit, used=0)


@near("OOM029")
def both_models_run(kit: Kit) -> Snapshot:
    return _with_a_second_model(kit, used=16)


def _with_lost_models(kit: Kit, lost: int) -> Snapshot:
    """Two of three models that were built are gone but for a cycle; `lost` of their sixteen weights each are."""
    job = kit.Job(outside=1 << 30, facts={})
    weights = [job.alloc(8 * UNIT, kit.MOVE) for _ in range(48)]
    job.facts = {"unreachable": {"addresses": weights[:lost], "owners": ["2 of Net"]}}
    return job.snapshot()


@own("OOM030")
def earlier_models_wait_for_the_collector(kit: Kit) -> Snapshot:
    return _with_lost_models(kit, lost=32)


@near("OOM030")
def a_single_lost_tensor_does_not_matter(kit: Kit) -> Snapshot:
    return _with_lost_models(kit, lost=1)
