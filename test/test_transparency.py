"""Layouts change no number: stages, devices, schedules, recomputation, replicas, accumulation, host steps and data threads
agree to the last bit. Folding and other micro-batches agree up to the order of summation. Seeded faults prove that the
tests notice errors.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import Row, assert_same_bits, covering, moved, training_program

from cnn_harness import ipu_utils
from cnn_harness.emulator.lowering.tensorflow import OPERATIONS, Lowering
from cnn_harness.emulator.network.network import Node
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.schedules import SCHEDULES
from cnn_harness.emulator.program import update
from cnn_harness.emulator.program.training_program import TrainingProgram
from cnn_harness.harness.programs import build
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run

UPDATES = 5
IMAGES = 100  # 5 updates of 48 samples are more than two epochs
RESNET = "--model-size 8 --optimiser momentum --clip-grad-norm 2"  # clips most of the updates
EFFICIENTNET = (
    "--model efficientnet --depth-coefficient 0.3 --width-coefficient 0.25 --top-width 64 --image-size 16 --group-dim 16 "
    "--expand-ratio 4 --dropout-rate 0.2 --block-survival-prob 0.5 --optimiser momentum --ema 0.3"
)
GROUP, BATCH = "--group-norm", "--batch-norm --BN-span 1"
SPAN = "--batch-norm --BN-span 2"  # two replicas of 4 samples are one micro-batch of 8 for batch norm


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> str:
    """Write a CIFAR-10 of a hundred images: noise, with its own colour for each class."""
    folder, draw = tmp_path_factory.mktemp("cifar"), np.random.default_rng(5)
    colours = draw.integers(30, 220, [10, 3, 1])
    for name, count in [*((f"data_batch_{i}.bin", IMAGES // 5) for i in range(1, 6)), ("test_batch.bin", 20)]:
        labels = draw.integers(0, 10, count)
        noise = draw.integers(-30, 30, [count, 3, 1024])
        pixels = np.clip(colours[labels] + noise, 0, 255).reshape(count, -1)
        (folder / name).write_bytes(np.concatenate([labels[:, None], pixels], 1).astype(np.uint8).tobytes())
    return str(folder)


def prepared(words: str, folder: str) -> Run:
    fixed = f"--precision 32.32 --dataset cifar-10 --data-dir {folder} --seed 3"
    return prepare(cli.parse([*fixed.split(), *words.split()], "train", environ={}).options, {}).run


def trained(words: str, folder: str, steps: Sequence[int] = (UPDATES,), begun: list | None = None) -> dict[str, np.ndarray]:
    """Return the losses of every update and all variables afterwards; `begun` gets the variables before."""
    built = training_program(prepared(words, folder), 0)
    if begun is not None:
        begun.append(built.values())
    rate = 0.25 if "efficientnet" in words else 0.05
    losses = [built.step([rate] * count).loss for count in steps]
    values = built.values()
    built.close()
    return {"losses": np.concatenate(losses), **values}


# The grid: every value of an axis meets every value of every other axis.

STAGES = "--shards 4 --pipeline --pipeline-splits b1/0/relu b2/0/relu b3/0/relu"
AXES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "resnet": {
        "norm": (GROUP, BATCH, SPAN),
        "stages": ("", "--shards 3", "--shards 2 --pipeline --pipeline-splits auto", STAGES),
        "schedule": tuple(SCHEDULES),
        "batch": ("1 12", "12 1", "2 6"),
        "recompute": ("", "--enable-recomputation"),
        "steps": ("5", "1 1 1 1 1", "2 1 2"),
        "fold": ("1", "2"),
        "threads": ("1", "48"),
    },
    "efficientnet": {
        "norm": (GROUP, SPAN),
        "stages": ("", "--shards 4 --pipeline --pipeline-splits block3a/SE block4a block6a"),
        "schedule": ("Grouped", "Interleaved", "1F1B-Virtual", "ZB-H1"),
        "batch": ("2 6", "6 2"),
        "recompute": ("", "--enable-recomputation"),
        "steps": ("5", "2 3"),
        "fold": ("1", "2"),
        "threads": ("1", "48"),
    },
}


def test_grid_has_every_pair():
    for axes in AXES.values():
        met = {pair for row in covering(axes) for pair in itertools.combinations(row.items(), 2)}
        for (one, its), (other, others) in itertools.combinations(axes.items(), 2):
            assert all(((one, a), (other, b)) in met for a in its for b in others)


def network(family: str, norm: str) -> str:
    return f"{RESNET if family == 'resnet' else EFFICIENTNET} {norm}"


def laid_out(family: str, row: Row) -> str:
    """Return the options of a row. With a span, the number of replicas is even. The four stages of `STAGES` are on as many
    devices as the schedule needs."""
    norm, (replicas, accumulation) = row["norm"], map(int, row["batch"].split())
    if norm == SPAN and replicas % 2:
        replicas, accumulation = 2, 6
    shards = 4 // SCHEDULES[row["schedule"]].stages_per_device
    return (
        f"{network(family, norm)} --batch-size 4 --replicas {replicas} --gradient-accumulation-count {accumulation} "
        f"{row['stages'].replace('--shards 4', f'--shards {shards}')} --pipeline-schedule {row['schedule']} "
        f"{row['recompute']} --fold {row['fold']} "
        f"--pipeline-num-parallel {row['threads']}"
    )


KEPT: dict[tuple[str, str, str], dict[str, np.ndarray]] = {}


def plain(family: str, norm: str, fold: str, folder: str) -> dict[str, np.ndarray]:
    """Return the plain loop, in which weights move: one stage, one replica, one host step."""
    if (family, norm, fold) not in KEPT:
        size = "--batch-size 8 --gradient-accumulation-count 6" if norm == SPAN else (
            "--batch-size 4 --gradient-accumulation-count 12")  # fmt: skip
        words = f"{network(family, norm.replace('span 2', 'span 1'))} {size} --fold {fold}"
        begun: list[dict[str, np.ndarray]] = []
        found = trained(words, folder, begun=begun)
        assert moved(begun[0], found) > 0.02
        KEPT[family, norm, fold] = found
    return KEPT[family, norm, fold]


@pytest.mark.parametrize(
    ("family", "row"),
    [
        pytest.param(family, row, id=f"{family}-{k}", marks=[pytest.mark.slow] * (family == "efficientnet"))
        for family, axes in AXES.items()
        for k, row in enumerate(covering(axes))
    ],
)
def test_layouts_change_no_bit(family, row, images):
    expected = plain(family, row["norm"], row["fold"], images)
    found = trained(laid_out(family, row), images, tuple(map(int, row["steps"].split())))
    assert_same_bits(expected, found)


@pytest.mark.parametrize(("batch", "stages"), [("12 1", STAGES), ("2 6", "")])
def test_gradient_noise_changes_no_bit(batch, stages, images):
    row = {
        "norm": GROUP,
        "batch": batch,
        "stages": stages,
        "schedule": "Grouped",
        "recompute": "",
        "fold": "1",
        "threads": "1",
    }
    found = trained(f"{laid_out('resnet', row)} --gradient-noise", images)
    assert_same_bits(plain("resnet", GROUP, "1", images), found)


FEW = f"{EFFICIENTNET} {GROUP} --batch-size 4 --gradient-accumulation-count 2 --fold 1"


@pytest.fixture(scope="module")
def two_updates(images) -> dict[str, np.ndarray]:
    """Return two updates of few images with random dropping."""
    return trained(FEW, images, (2,))


def test_span_makes_difference(images):
    alone = plain("resnet", BATCH, "1", images)
    assert not np.array_equal(plain("resnet", SPAN, "1", images)["losses"], alone["losses"])


FROZEN = f"{RESNET} {BATCH} --variable-filter b2 fc1 --batch-size 4"  # with frozen norms before and after the trained part


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32.32", "8.16"])
def test_frozen_norms_stay_and_change_no_bit(precision, images):
    words, begun = f"{FROZEN} --precision {precision}", []
    expected = trained(f"{words} --gradient-accumulation-count 12 --fold 1", images, (3,), begun)
    changed = {name for name, value in begun[0].items() if value.tobytes() != expected[name].tobytes()} - {"global_step"}
    assert changed == {name for name in begun[0] if "b2/" in name or "fc1" in name}
    layout = f"--gradient-accumulation-count 4 --replicas 3 {STAGES} {FAULTY['recompute']}"
    assert_same_bits(expected, trained(f"{words} {layout}", images, (1, 2)))
    span = trained(f"{words} --gradient-accumulation-count 6 --replicas 2 --BN-span 2", images, (3,))
    frozen = [name for name in span if "moving" in name and name not in changed]
    assert frozen and all(span[name].tobytes() == begun[0][name].tobytes() for name in frozen)


# Seeded faults: the grid fails with any of them.

FAULTY: Row = {"stages": STAGES, "schedule": "Grouped", "batch": "2 6", "fold": "1", "recompute": "--enable-recomputation",
               "threads": "48"}  # fmt: skip


def drop_an_accumulation_step(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ExecutionPlan.passes_per_update.fget
    monkeypatch.setattr(ExecutionPlan, "passes_per_update", property(lambda plan: whole(plan) - 1))


def change_the_stream(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    original = ipu_utils.stream_of
    monkeypatch.setattr(ipu_utils, "stream_of", lambda dataset, prepare: original(lambda: change(dataset()), prepare))


def swap_two_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(dataset: tf.data.Dataset) -> tf.data.Dataset:
        pairs = dataset.batch(2, drop_remainder=True)
        return pairs.map(lambda pair: {name: tf.reverse(value, [0]) for name, value in pair.items()}).unbatch()

    change_the_stream(monkeypatch, change)


def shift_the_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replicas 1 and 2 share their statistics, instead of 0 and 1."""
    change_the_stream(monkeypatch, lambda dataset: dataset.unbatch().skip(4).batch(8, drop_remainder=True))


def count_statistics_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = update.HostStep._average_updates

    def twice(self: Any, weights: Any, results: Any) -> list[tf.Operation]:
        names = [v.name for v in self.training.variables if not v.trainable]
        return original(self, weights, {**results, **{n: weights[n] - 2 * (weights[n] - results[n]) for n in names}})

    monkeypatch.setattr(update.HostStep, "_average_updates", twice)


def draw_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, calls = OPERATIONS[kind], itertools.count()

    def again(low: Lowering, node: Node, x: tf.Tensor) -> tf.Tensor:
        return drawn(low, dataclasses.replace(node, label=f"{kind}/{next(calls)}"), x)

    monkeypatch.setitem(OPERATIONS, kind, again)


@pytest.mark.parametrize(
    ("fault", "norm"),
    [
        (drop_an_accumulation_step, GROUP),
        (swap_two_micro_batches, GROUP),
        (count_statistics_twice, SPAN),
        (shift_the_span, SPAN),
    ],
)
def test_grid_notices_faults(fault, norm, images, monkeypatch):
    expected = plain("resnet", norm, "1", images)
    fault(monkeypatch)
    found = trained(laid_out("resnet", {**FAULTY, "norm": norm}), images)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dropout", "drop_path"])
def test_grid_notices_repeated_random_draws(kind, two_updates, images, monkeypatch):
    """This also proves that both kinds of dropping are active."""
    draw_again(kind, monkeypatch)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(two_updates, trained(f"{FEW} --enable-recomputation", images, (2,)))


# Up to the order of summation


@pytest.fixture
def in_float64(monkeypatch):
    """Compute weights and arithmetic in float64."""
    monkeypatch.setattr(ipu_utils, "TrainingSpec", partial(ipu_utils.TrainingSpec, dtype=tf.float64))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "one", "others"),
    [
        (f"{RESNET} {GROUP}", "--batch-size 4 --gradient-accumulation-count 12 --fold 1", [
            "--batch-size 24 --gradient-accumulation-count 2 --fold 1",
            f"--batch-size 2 --replicas 4 --gradient-accumulation-count 6 --fold 2 {STAGES}",
        ]),
        (f"{RESNET} {BATCH}", "--batch-size 4 --gradient-accumulation-count 12 --fold 1", [
            "--batch-size 2 --replicas 4 --BN-span 2 --gradient-accumulation-count 6 --fold 3 --enable-recomputation",
        ]),
        (f"{EFFICIENTNET} {GROUP}", "--batch-size 4 --gradient-accumulation-count 6 --fold 1", [
            "--batch-size 4 --gradient-accumulation-count 6 --fold 6",
        ]),
    ],
)  # fmt: skip
def test_folds_and_micro_batches_agree_in_float64(words, one, others, images, in_float64):
    begun: list[dict[str, np.ndarray]] = []
    expected = trained(f"{words} {one}", images, (3,), begun)
    assert moved(begun[0], expected) > 0.02
    assert {value.dtype for name, value in expected.items() if name.endswith("kernel")} == {np.dtype(np.float64)}
    for other in others:
        found = trained(f"{words} {other}", images, (3,))
        for name, value in expected.items():
            if name != "losses":  # these are FP32
                assert np.abs(found[name] - value).max() <= 1e-9 * max(1.0, np.abs(value).max()), (other, name)


def first_gradient(words: str, folder: str) -> dict[str, np.ndarray]:
    """Return the first update's gradients, from plain SGD at rate 1."""
    plain_rule = words.replace("momentum", "SGD")
    built = training_program(prepared(f"--loss-scaling 1 {plain_rule} --weight-decay 0", folder), 0)
    before = built.values()
    built.step([1.0])
    after = built.values()
    built.close()
    return {name: before[name].astype(np.float64) - after[name] for name in before if before[name].dtype == np.float32}


def test_folding_changes_only_last_bits_of_gradients(images):
    words = f"{RESNET} {BATCH} --batch-size 4 --gradient-accumulation-count 12"
    expected = first_gradient(f"{words} --fold 1", images)
    found = first_gradient(f"{words} --fold auto", images)
    for name, gradient in expected.items():
        # some gradients are 0 except for rounding: those of a shift that the next batch norm cancels
        assert np.abs(found[name] - gradient).max() <= 1e-5 * np.linalg.norm(gradient) + 1e-7, name


def test_folding_loses_no_more_gradients(images):
    """The loss scale is so small that FP16 loses some: gradients of a micro-batch have the same size in every pass."""
    words = f"{RESNET} {GROUP} --batch-size 4 --gradient-accumulation-count 8 --precision 16.32 --loss-scaling 0.0009765625"
    expected, found = (first_gradient(f"{words} --fold {fold}", images) for fold in (1, 8))
    for name, gradient in expected.items():
        assert np.abs(found[name] - gradient).max() <= 0.02 * np.linalg.norm(gradient), name


# Random numbers of replicas


@pytest.mark.slow
def test_replicas_draw_same_numbers_if_asked(two_updates, images):
    """The replicas see different images, but draw by an image's position in their own stream."""
    words = f"{EFFICIENTNET} {GROUP} --replicas 2 --batch-size 4 --fold 1"
    plan = prepared(f"{words} --gradient-accumulation-count 3 --identical-replica-seeding", images).plan
    positions = np.arange(2 * 3 * 4 * 2)  # two updates
    drawn = plan.random_position(positions).reshape(-1, 2, 4)
    assert np.array_equal(drawn[:, 0], drawn[:, 1])
    assert np.array_equal(drawn[:, 0].ravel(), np.arange(24))
    assert np.array_equal(prepared(words, images).plan.random_position(positions), positions)
    same = trained(f"{words} --identical-replica-seeding", images, (1,))
    assert same["losses"][0] != two_updates["losses"][0]  # as of replicas that draw for themselves


# The graph


def stage_devices(built: TrainingProgram, kinds: Sequence[str]) -> dict[str, set[str]]:
    """Return the devices of the operations of each kind."""
    found = built.graph.get_operations()
    return {kind: {op.device for op in found if op.type.endswith(kind)} for kind in kinds}


def assert_stages_apart(built: TrainingProgram) -> None:
    found = stage_devices(built, ("Conv2D", "Conv2DBackpropFilter", "MatMul"))
    assert set().union(*found.values()) == {f"/device:CPU:{j}" for j in range(4)}
    assert found["Conv2D"] == found["Conv2DBackpropFilter"] == {f"/device:CPU:{j}" for j in range(3)}


def test_stages_use_their_own_devices(images, monkeypatch):
    words = f"{RESNET} {BATCH} --batch-size 4 --gradient-accumulation-count 8 --fold 1 {STAGES}"
    built = training_program(prepared(words, images), 0)
    assert_stages_apart(built)
    record = tf.RunMetadata()
    built.step([0.0], trace=record)
    built.close()
    busy = {
        device.device.rsplit("/", 1)[-1].lower()
        for device in record.step_stats.dev_stats
        for node in device.node_stats
        if "Conv2D" in node.node_name or "MatMul" in node.node_name
    }
    assert len({name for name in busy if "cpu:" in name}) == 4
    # the check notices shared devices
    run = prepared(words, images)
    crowded = dataclasses.replace(run, plan=dataclasses.replace(run.plan, stage_devices=("/cpu:0",) * 4))
    together = training_program(crowded, 0)
    with pytest.raises(AssertionError):
        assert_stages_apart(together)
    together.close()


def test_recomputation_runs_forward_again(images):
    def convolutions(layout: str) -> int:
        built = training_program(prepared(f"{RESNET} {BATCH} --gradient-accumulation-count 4 {layout}", images), 0)
        count = sum(operation.type.endswith("Conv2D") for operation in built.graph.get_operations())
        built.close()
        return count

    assert convolutions("") == 7
    assert convolutions("--enable-recomputation") == 14  # the last segment's dense layer needs no second run


def test_graph_size_is_independent_of_layout(images):
    counts = set()
    for replicas, accumulation in ((1, 8), (16, 4)):
        words = f"{RESNET} --batch-size 4 {STAGES} --replicas {replicas} --gradient-accumulation-count {accumulation}"
        built = training_program(prepared(f"{words} --fold 1", images), 0)
        counts.add(len(built.graph.get_operations()))
        built.close()
    assert len(counts) == 1


def test_stopping_drops_unfinished_update(images):
    words = f"{RESNET} {GROUP} --batch-size 4 --gradient-accumulation-count 8 --fold 1 {STAGES}"
    built = training_program(prepared(words, images), 0)
    seen: list[float] = []

    def stop_after_three(loss: float, accuracy: float) -> None:
        seen.append(loss)
        if len(seen) == 3:
            built.stop(drop_update=True)

    metrics = built.step([0.05] * 5000, stop_after_three)
    again = built.step([0.05])
    assert len(again.loss) == len(again.instance_seconds) == 0  # a pending request leaves nothing to do
    found = built.values()
    done = int(found["global_step"][0])
    built.close()
    assert 3 <= done < 5000
    assert len(metrics.loss) == len(seen) == done
    expected = trained(words, images, (done,))
    assert_same_bits(expected, {"losses": metrics.loss, **found})


def test_faults_change_code_in_use():
    """The seeded faults patch names that the programs use."""
    assert build.ipu_utils is ipu_utils
