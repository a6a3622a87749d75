"""The planner agrees with bytes and cycles computed by hand and with published numbers of real runs, and is monotonic."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnn_harness.emulator.cost_model import memory, search, systems, variants
from cnn_harness.emulator.cost_model.constants import FITTED
from cnn_harness.emulator.cost_model.memory_constants import AGREEING, MEMORY
from cnn_harness.emulator.cost_model.prediction import Prediction, predict
from cnn_harness.emulator.cost_model.roofline import layers
from cnn_harness.emulator.cost_model.supersteps import steps
from cnn_harness.emulator.cost_model.systems import BOW, MK1, MK2, SYSTEMS
from cnn_harness.emulator.cost_model.throughput import Timing
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.emulator.plan.lifetimes import kept_by_each
from cnn_harness.emulator.plan.schedules import SCHEDULES, build, scheduled_idle_fraction
from cnn_harness.harness.options.call import Call
from cnn_harness.tools import fit_planner
from cnn_harness.tools.planning import memory_facts
from cnn_harness.tools.planning.memory_facts import Held
from cnn_harness.tools.planning.plan_options import run_of

MIB = 2**20


@cache
def call(words: str) -> Call:
    """Return a call of train.py."""
    return Call.of_words(words.split(), "train")


def planned(words: str, system: str | None = None) -> Prediction:
    work = run_of(call(words)).run.workload()
    return predict(work, systems.smallest_holding(systems.by_name(system) if system else None, work.plan.ipus))


def of(work: Workload, system: str = "POD16") -> Prediction:
    return predict(work, SYSTEMS[system])


B4 = "--config B4-G16-GN-Native_16IPU_4x4"
SMALL = "--dataset cifar-10 --model resnet --model-size 8 --micro-batch-size 8 --precision 16.16"


# --- by hand


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "Grouped"])  # its clocks have room for two
@pytest.mark.parametrize("system", ["POD16", "A100-8"])  # with common clocks, and without
def test_equal_actions_take_clocks_of_table(schedule, system):
    words = f"{SMALL} --shards 2 --pipeline --pipeline-splits auto --pipeline-schedule {schedule}"
    timing = planned(f"{words} --gradient-accumulation-count 30", system).timing
    stages = len(timing.workload.plan.stages)
    for cell in timing.cells:
        timing.cells[cell] = replace(timing.cells[cell], seconds=1.0)
    assert timing.pipeline == len(build(schedule, stages, 30))
    assert 1 - timing.busy / timing.pipeline == pytest.approx(scheduled_idle_fraction(schedule, stages, 30))


def test_split_backward_takes_time_of_whole():
    words = f"{B4} --pipeline-schedule"
    whole, split = (planned(f"{words} {schedule}").timing for schedule in ("1F1B", "ZB-H1"))
    assert split.busy == pytest.approx(whole.busy) and all(split.cells[stage, "W"].seconds > 0 for stage in range(4))


def test_memory_of_small_network_by_hand():
    """ResNet-8 in 16.16 with momentum on one IPU: every part computed from counts."""
    words = f"{SMALL} --optimiser momentum --disable-variable-offloading"
    work = run_of(call(words)).run.workload()
    held = of(work).memories[0]
    trained = sum(v.elements for v in work.network.variables if v.trainable)
    moving = sum(v.elements for v in work.network.variables if not v.trainable)
    assert held.weights == int(MEMORY.uneven * 2 * (trained + moving))
    assert held.optimiser_state == int(MEMORY.uneven * 2 * trained)
    assert held.gradients == int(MEMORY.uneven * 2 * max(v.elements for v in work.network.variables if v.trainable))
    added = of(run_of(call(f"{words} --gradient-accumulation-count 2")).run.workload()).memories[0]
    assert added.gradients == held.optimiser_state  # all gradients wait for the second pass
    wide = of(run_of(call(f"{words} --gradient-accumulation-count 2 --precision 16.32")).run.workload()).memories[0]
    assert wide.gradients == pytest.approx(2 * added.gradients, abs=1)  # in the format of the weights
    assert held.images == 2 * 8 * 3 * 32 * 32 * 2  # FP16 images, one in use and one waiting
    operations, sums = work.network.operations, []
    for k, o in enumerate(operations):  # the moment of each operation: what earlier ones and it keep, and a product
        active = MEMORY.uneven * 2 * 8 * sum(kept_by_each(operations)[: k + 1])
        product = 8 * (o.source.elements + o.shape.elements) + sum(v.elements for v in o.variables)
        sums.append((active + MEMORY.temporaries * 2 * product * (o.op in ("conv", "dense")), active))
    peak, active = max(sums)
    assert held.activations == int(active) and held.temporaries == int(peak - active)
    assert held.stashed_activations == int(MEMORY.uneven * 2 * 8 * 32 * 32 * operations[0].source.channels)
    launched = sum(
        {"conv": 14, "dense": 14, "norm": 11, "add": 2, "relu": 2, "global_mean": 3, "subsample": 2}[o.op]
        for o in operations
    )
    assert held.code == int(1472 * (MEMORY.code_always + MEMORY.code * launched))
    assert held.total == sum((held.weights, held.optimiser_state, held.gradients, held.stashed_activations,
                                held.activations, held.temporaries, held.images, held.code))  # fmt: skip


# --- an update, apart from its micro-batches

R50 = "--config mk2_resnet50_mlperf_pod16_bs20"


def update_of(words: str, system: str = "POD16") -> Timing:
    return planned(words, system).timing


def test_all_reduce_by_hand():
    """Gradients of ResNet-50 in FP16: rings of 4 IPUs in a machine, of the machines of a POD, then between PODs."""
    size = 2 * (25_557_032 + 7 * 7 * 64)  # images have a fourth channel on the device
    for system, replicas in (("POD4", 4), ("POD16", 16), ("POD64", 64), ("POD256", 256)):
        timing = update_of(f"{R50} --replicas {replicas}", system)
        assert timing.workload.trained_elements_per_ipu * 2 == size
        machines, pods = min(16, replicas // 4), max(1, replicas // 64)
        near, far = 2 * size * 3 / 4 / (160e9 * 0.85), 2 * size * (machines - 1) / machines / (128e9 * 0.85)
        hops = 2 * (min(64, replicas) - 1) * 2 * 15e-9 * (1 + min(64, replicas) / 4)
        gateways = 2 * size * (pods - 1) / pods / (16 * 25e9) + {1: 0, 4: 4}[pods] * FITTED.gateway_seconds
        assert timing.all_reduce == pytest.approx(near + far + hops + gateways)


@pytest.mark.parametrize("schedule", ["Grouped", "Interleaved"])
def test_long_timeline_follows_from_short_ones(schedule):
    """An extrapolated timeline equals the complete one."""
    timing = variants.scheduled(planned(B4), schedule).timing
    work = timing.workload
    assert math.isclose(timing.pipeline, timing._walked(work.plan.accumulation), rel_tol=1e-9)
    placed = list(timing.placed(work.plan.accumulation))
    assert len(placed) == 2 * 4 * work.plan.accumulation
    for stage in range(4):  # an IPU does one thing at a time
        own = sorted((begin, end) for action, begin, end in placed if action.stage == stage)
        assert all(end <= begin + 1e-12 for (_, end), (begin, _) in pairwise(own))


# --- the steps and layers of a plan

R18 = "--model resnet --model-size 18 --dataset imagenet --micro-batch-size 8"
PLANS = (B4, R50, f"{R18} --enable-recomputation", f"{R18} --batch-norm --BN-span 2 --replicas 2",
         f"{SMALL} --system A100-8")  # fmt: skip


@pytest.mark.parametrize("words", PLANS)
@pytest.mark.parametrize("training", [True, False])
def test_steps_sum_to_plan(words, training):
    """Times of steps are those of the stages, and the largest memory is that of the IPU."""
    words, _, system = words.partition(" --system ")
    prediction = of(run_of(call(words), training=training).run.workload(), system or "POD16")
    own = steps(prediction)
    assert [max(step.memory.total for step in ipu if step.memory) for ipu in own] == [m.total for m in prediction.memories]
    for (stage, kind), cell in prediction.timing.cells.items():
        parts = [step for ipu in own for step in ipu if step.stage == stage and (step.step == "forward") == (kind == "F")]
        assert sum(sum(step.seconds) for step in parts) == pytest.approx(cell.seconds if training or kind == "F" else 0)


@pytest.mark.parametrize("words", PLANS)
def test_no_layer_is_above_its_roof(words):
    words, _, system = words.partition(" --system ")
    prediction = planned(words, system or "POD16")
    found = list(layers(prediction))
    assert all(0 < layer.rate <= layer.roof <= layer.peak for layer in found)
    work = prediction.workload
    assert sum(layer.flops for layer in found) == 2 * work.network.multiply_adds * work.plan.micro_batch_size


def test_intensity_by_hand():
    """A result in FP16 of a depthwise 3x3 convolution takes 18 FLOPs, and 2 bytes each for itself and an input. With groups
    of 16, results share inputs."""
    for groups, flops in ((1, 18), (16, 18 * 16)):
        found = next(each for each in layers(planned(f"{B4} --group-dim {groups}")) if each.node.groups > 1)
        positions, weights = found.product.block[0], 9 * groups**2
        assert (found.channels_per_group, found.node.kernel) == (groups, 3)
        assert found.intensity == pytest.approx(flops * positions * groups / (2 * (2 * positions * groups + weights)))
        assert found.peak == pytest.approx({1: 6, 16: 64}[groups] * 2 * 1472 * MK2.clock)


# --- monotonic -------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 12), st.sampled_from([0.1, 0.2, 0.4, 0.6]), st.booleans())
def test_more_work_takes_more(micro_batch_size, proportion, recomputation):
    base = planned(B4).workload
    options = replace(
        base.plan.options, available_memory_proportion=(proportion,), enable_recomputation=recomputation
    )  # fmt: skip
    work = replace(base, plan=replace(base.plan, micro_batch_size=micro_batch_size, options=options))
    more = replace(work, plan=replace(work.plan, micro_batch_size=micro_batch_size + 1))
    assert of(more).timing.seconds > of(work).timing.seconds
    assert all(a.total > b.total for a, b in zip(of(more).memories, of(work).memories))
    longer = replace(work, plan=replace(work.plan, accumulation=work.plan.accumulation + 4))
    assert of(longer).timing.seconds > of(work).timing.seconds
    if not recomputation:
        saving = replace(work, plan=replace(work.plan, options=replace(options, enable_recomputation=True)))
        assert of(saving).timing.seconds > of(work).timing.seconds
        assert of(saving).memories[0].total < of(work).memories[0].total
        assert of(saving).memories[3].total == of(work).memories[3].total  # the last stage still has its activations
    if proportion < 0.6:
        wider = replace(work, plan=replace(work.plan, options=replace(options, available_memory_proportion=(0.6,))))
        assert of(wider).timing.seconds < of(work).timing.seconds
        assert all(a.total >= b.total for a, b in zip(of(wider).memories, of(work).memories))


def test_single_stage_recomputes_by_segments():
    words = "--model resnet --model-size 50 --dataset imagenet --micro-batch-size 8"
    plain, saving = planned(words), planned(f"{words} --enable-recomputation")
    assert saving.memories[0].total < plain.memories[0].total and saving.timing.seconds > plain.timing.seconds
    network = plain.workload.network
    inputs = list(accumulate(each[0].source.elements for each in network.by_segment.values() if each))
    # When a segment is recomputed, the inputs of later segments are no longer needed. It is fullest at the last.
    assert saving.memories[0].stashed_activations == int(MEMORY.uneven * inputs[-1] * 8 * 2)
    early = [each for each in memory.sizes(saving.workload, MK2)[0].moments if each.waiting < inputs[-1] * 8 * 2]
    assert early and all(each.waiting / 16 in inputs for each in early)


OPTIONS = (
    "--available-memory-proportion 0.1", "--no-enable-half-partials", "--no-disable-variable-offloading",
    "--num-io-tiles 32", "--prefetch-depth 3", "--no-enable-recomputation", "--pipeline-schedule Interleaved",
    "--no-eight-bit-io", "--internal-exchange-optimisation-target memory",
)  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_device_options_change_prediction(option):
    before, after = planned(B4).values(), planned(f"{B4} {option}").values()
    keys = ("memory_bytes_per_ipu", "update_seconds")
    assert any(before[key] != after[key] for key in keys)


# --- published numbers


def test_published_rates_are_met():
    """Within the errors given in the docs; a script makes the fit."""
    errors = [abs(fit_planner.case_of(row).error(FITTED)) for row in fit_planner.ROWS]
    assert statistics.median(errors) < 0.03 and max(errors) < 0.08
    networks = [each for each, row in zip(errors, fit_planner.ROWS) if row.family.startswith("EfficientNet")]
    assert statistics.median(networks) < 0.022 and max(networks) < 0.05


def test_published_rates_of_gpus_are_met():
    """Within the errors given in the docs, with the constants of the table."""
    errors = [abs(case.error(case.system.constants)) for case in map(fit_planner.case_of, fit_planner.GPU_ROWS)]
    assert fit_planner.svg(fit_planner.GPU_ROWS, errors, errors).count("A100-16") == 2
    assert len(errors) == 22 and statistics.median(errors) < 0.05 and max(errors) < 0.22


def test_systems_are_rows_of_one_table():
    """A row without a chip has all facts itself; the constants may be part of it."""
    for name, row in systems.ROWS.items():
        assert systems.read(name, row) == SYSTEMS[name] and set(row) <= set(systems.KEYS)
    assert {row.device.kind for row in SYSTEMS.values()} == {"IPU", "GPU", "TPU"}
    assert (SYSTEMS["POD32"].device, SYSTEMS["POD32"].devices, SYSTEMS["POD32"].constants) == (MK2, 32, FITTED)
    own = systems.read("own", {**systems.CHIPS["V100"], "devices": 8, "matrix_share": 0.5})
    assert own.constants == replace(SYSTEMS["V100-8"].constants, matrix_share=0.5)
    assert own.device == replace(SYSTEMS["V100-8"].device, name="own")


def test_systems_that_are_not_fitted_are_predicted():
    """All trainings of a system, from the trainings of the other systems only."""
    errors = fit_planner.errors_of_systems([fit_planner.case_of(row) for row in fit_planner.ROWS], FITTED)
    sizes = [abs(each) for each in errors]
    assert statistics.median(sizes) < 0.06 and max(sizes) < 0.2


def test_memory_agrees_with_published_facts():
    """Every published configuration and readme command fits, and what did not fit does not, with all kept constants."""
    known = [Held.of(fact) for fact in memory_facts.facts()]
    names = {each.fact.name for each in known}
    assert len(names) == len(known) >= 110
    assert {"mk2_efficientnet_b4_g16_16ipus", "resnet50_mlperf_pod16_lars", "B5-G16-LN_PN-Native_16IPU_4x4"} < names
    for each in known:
        for constants in (MEMORY, *AGREEING):
            assert (each.room(constants) >= 0) is each.fact.fitted, each.fact.name


def test_memory_fit_is_repeated():
    """The constants are those of the fit, which has 5 % of an IPU's memory as its smallest margin."""
    fitted, agreeing, margin = memory_facts.fit(memory_facts.held(memory_facts.facts()))
    assert (fitted, agreeing) == (MEMORY, AGREEING) and margin == pytest.approx(0.05, abs=0.003)


INFERENCES = {
    "--model resnet --model-size 50 --batch-norm --fused-preprocessing": 80,
    "--model resnet --model-size 50 --batch-norm --fused-preprocessing --synthetic-data": 90,
    "--model efficientnet --model-size B0 --precision 16.16 --batch-norm": 42,
    "--model efficientnet --model-size B4 --precision 16.16 --batch-norm": 5,
}


@pytest.mark.parametrize("words", INFERENCES)
def test_real_inferences_are_predicted_to_fit(words):
    """The largest micro-batches of the published tables fit; ten times as much does not."""
    for factor in (1, 10):
        batch = f"--dataset imagenet --micro-batch-size {factor * INFERENCES[words]}"
        work = run_of(call(f"{words} {batch}"), training=False).run.workload()
        assert of(work).fits is (factor == 1)
        assert of(work).memories[0].optimiser_state == of(work).memories[0].gradients == 0


def test_published_peaks_are_met():
    """TFLOP/s: 124.5, 250 and 348.6 in half precision; 304, 897 and 897 MiB."""
    assert [round(ipu.peak / 1e12, 1) for ipu in (MK1, MK2, BOW)] == [124.5, 250.6, 348.6]
    assert [ipu.memory // MIB for ipu in (MK1, MK2, BOW)] == [304, 897, 897]


# --- search


def test_search_matches_or_beats_published_cuts():
    """B0 on four IPUs, small enough for a test."""
    given = planned("--config B0-G16-GN-Native_16IPU_2x8 --replicas 2 --gradient-accumulation-count 16", "POD4")
    found = search.search(given.workload, SYSTEMS["POD4"])
    best = found.best
    assert best.fits and best.timing.images_per_second >= given.timing.images_per_second
    plan = best.workload.plan
    assert plan.global_batch == given.workload.plan.global_batch
    assert plan.options.shards * plan.options.replicas == 4
    assert tuple(name for stage in plan.stages for name in stage) == given.workload.network.segments
    kinds = [(len(p.stages), p.options.shards, p.micro_batch_size) for p in (each.workload.plan for each in found.frontier)]
    assert len(set(kinds)) == len(kinds)  # the fastest of each
    assert {each.timing.host_limit for each in found.frontier} == {given.timing.host_limit}
    assert best is max(found.frontier, key=lambda each: each.timing.images_per_second)
