"""However an update is carried out, its numbers are the same: stages, devices, schedules, recomputation, replicas,
accumulation and host steps to the last bit, folding up to the order of summation."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from emulator.executor import TrainingProgram
from harness import cli
from harness.build import training_program
from harness.run import Run, prepare
from Models._tensor_layers import TensorLayers

UPDATES = 9
RESNET = "--dataset fashion-mnist --model-size 8 --batch-size 4 --seed 3 --optimiser momentum --fold 1"
RESNET_SPLITS = "--pipeline --pipeline-splits b1/0/relu b2/0/relu b3/0/relu"
EFFICIENTNET = (
    "--dataset fashion-mnist --model efficientnet --depth-coefficient 0.5 --group-dim 16 --expand-ratio 4 --dropout-rate 0.2 "
    "--batch-size 4 --seed 3 --optimiser momentum --fold 1"
)
EFFICIENTNET_SPLITS = "--pipeline --shards 4 --pipeline-splits block2a/SE block4a block5b"


def prepared(words: str) -> Run:
    return prepare(cli.parse(words.split(), "train", environ={}).options, {})


def program(words: str) -> TrainingProgram:
    return training_program(prepared(words), 0)


def trained(words: str, steps: tuple[int, ...] = (UPDATES,), rate: float = 0.05) -> dict[str, np.ndarray]:
    """Losses of every update and all variables after them."""
    built = program(words)
    losses = [built.step([rate] * count).loss for count in steps]
    values = built.values()
    built.close()
    return {"losses": np.concatenate(losses), **values}


def assert_same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not different, f"{len(different)} of {len(one)} differ: {different[:4]}"


@pytest.fixture(scope="module", params=["--batch-norm", "--group-norm"])
def plain(request):
    """The plain loop over 12 micro-batches, by norm."""
    words = f"{RESNET} {request.param}"
    return words, trained(f"{words} --gradient-accumulation-count 12")


GRID = [
    *(f"--shards 4 {RESNET_SPLITS} --pipeline-schedule {schedule}" for schedule in ("Grouped", "Interleaved", "Sequential")),
    f"--shards 4 {RESNET_SPLITS} --pipeline-schedule Grouped --enable-recomputation",
    f"--shards 4 {RESNET_SPLITS} --xla-recompute",
    f"{RESNET_SPLITS} --shards 1",
    f"{RESNET_SPLITS} --shards 1 --enable-recomputation",
    "--enable-recomputation",
    "--shards 3",
    "--shards 2 --pipeline --pipeline-splits auto",
    "--shards 2 --pipeline --pipeline-splits stage2/unit1",
    "--pipeline-num-parallel 1",
]


@pytest.mark.parametrize("layout", GRID)
def test_stages_schedules_and_recomputation_change_no_bit(plain, layout):
    words, expected = plain
    assert_same_bits(expected, trained(f"{words} --gradient-accumulation-count 12 {layout}"))


@pytest.mark.parametrize(
    "layout",
    [
        "--replicas 12",
        "--replicas 3 --gradient-accumulation-count 4",
        f"--replicas 4 --gradient-accumulation-count 3 --shards 4 {RESNET_SPLITS} --pipeline-schedule Grouped",
        f"--replicas 2 --pipeline-depth 6 --shards 4 {RESNET_SPLITS.replace('--pipeline ', '')}",
    ],
)
def test_replicas_and_accumulation_change_no_bit(plain, layout):
    words, expected = plain
    assert_same_bits(expected, trained(f"{words} {layout}"))


@pytest.mark.parametrize("steps", [(1,) * UPDATES, (4, 5), (2, 1, 6)])
def test_host_steps_change_no_bit(plain, steps):
    words, expected = plain
    layout = f"--gradient-accumulation-count 12 --shards 4 {RESNET_SPLITS}"
    assert_same_bits(expected, trained(f"{words} {layout}", steps))


def test_the_weights_really_moved(plain):
    words, expected = plain
    start = program(f"{words} --gradient-accumulation-count 12")
    before = start.values()
    start.close()
    kernels = [name for name in before if name.endswith("kernel")]
    distance = sum(float(np.square(expected[name] - before[name]).sum()) for name in kernels)
    assert (distance / sum(float(np.square(before[name]).sum()) for name in kernels)) ** 0.5 > 0.05


def test_dropout_is_replayed_over_stages_and_recomputation():
    plain = trained(f"{EFFICIENTNET} --gradient-accumulation-count 6", (2,))
    for layout in (
        f"{EFFICIENTNET_SPLITS} --pipeline-schedule Grouped",
        f"{EFFICIENTNET_SPLITS} --enable-recomputation --replicas 2 --pipeline-depth 3",
    ):
        count = "" if "pipeline-depth" in layout else "--gradient-accumulation-count 6"
        assert_same_bits(plain, trained(f"{EFFICIENTNET} {count} {layout}", (2,)))
    assert not np.array_equal(
        plain["losses"], trained(f"{EFFICIENTNET} --dropout-rate 0 --gradient-accumulation-count 6", (2,))["losses"]
    )


def first_gradient(words: str) -> dict[str, np.ndarray]:
    """The first update's gradients, from plain SGD at rate 1."""
    built = program(words.replace("momentum", "SGD") + " --weight-decay 0 --loss-scaling 1")
    before = built.values()
    built.step([1.0])
    after = built.values()
    built.close()
    return {name: before[name].astype(np.float64) - after[name] for name in before if before[name].dtype == np.float32}


@pytest.mark.parametrize("fold", ["2", "6", "12", "auto"])
def test_folding_changes_only_the_order_of_summation(plain, fold):
    words, _ = plain
    expected = first_gradient(f"{words} --gradient-accumulation-count 12")
    found = first_gradient(f"{words} --gradient-accumulation-count 12 --fold {fold}")
    for name, gradient in expected.items():
        # FP32 sums of tens of thousands of cancelling terms, in another order
        assert np.abs(found[name] - gradient).max() <= 3e-5 * np.linalg.norm(gradient) + 1e-7, name


def test_a_span_is_one_micro_batch_to_batch_norm():
    words = f"{RESNET} --batch-norm"
    wide = words.replace("--batch-size 4", "--batch-size 16")
    expected = trained(f"{wide} --gradient-accumulation-count 3")
    assert_same_bits(expected, trained(f"{words} --replicas 4 --BN-span 4 --gradient-accumulation-count 3"))
    assert_same_bits(
        trained(f"{words.replace('--batch-size 4', '--batch-size 8')} --gradient-accumulation-count 6"),
        trained(f"{words} --replicas 4 --BN-span 2 --gradient-accumulation-count 3 --shards 4 {RESNET_SPLITS}"),
    )
    narrow = trained(f"{words} --replicas 4 --gradient-accumulation-count 3")
    assert not np.array_equal(expected["losses"], narrow["losses"])


def test_recomputation_runs_forward_again_and_counts_statistics_once():
    def convolutions(layout: str) -> int:
        built = program(f"{RESNET} --batch-norm --gradient-accumulation-count 4 {layout}")
        return sum(operation.type == "Conv2D" for operation in built.graph.get_operations())

    plain, again = convolutions(""), convolutions("--enable-recomputation")
    assert plain == 7
    assert again == 14  # the last segment's dense layer needs no second run


def test_stages_live_on_devices_of_their_own():
    built = program(f"{RESNET} --batch-norm --gradient-accumulation-count 8 --shards 4 {RESNET_SPLITS}")
    kinds = ("Conv2D", "Conv2DBackpropFilter", "MatMul")
    homes = {(op.device, op.type) for op in built.graph.get_operations() if op.type in kinds}
    assert {device for device, _ in homes} == {f"/device:CPU:{j}" for j in range(4)}
    assert {device for device, kind in homes if kind == "Conv2DBackpropFilter"} == {f"/device:CPU:{j}" for j in range(3)}
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    record = tf.RunMetadata()
    with built.graph.as_default():
        built.session.run(built._step, {built._rates: np.zeros([1], np.float32)}, options, record)
    busy = {
        d.device.rsplit("/", 1)[-1].lower()
        for d in record.step_stats.dev_stats
        for n in d.node_stats
        if "Conv2D" in n.node_name or "MatMul" in n.node_name
    }
    assert len({name for name in busy if "cpu:" in name}) == 4


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--shards 2 --pipeline", "pipeline_splits has 0 names but shards=2 needs 1"),
        ("--shards 2 --pipeline --pipeline-splits b9/0/relu", "no segment 'b9/0/relu'; did you mean"),
        ("--replicas 2 --BN-span 4", "--BN-span 4 must be a power of two that divides the 2 replicas"),
        ("--replicas 3 --BN-span 3", "--BN-span 3 must be a power of two"),
        ("--gradient-accumulation-count 6 --fold 4", "--fold 4 must divide the 6 micro-batches of an update evenly"),
        ("--shards 40", "available shards (40)"),
        ("--fold many", "fold is 'many' but must be auto or a whole number above 0"),
    ],
)
def test_layouts_that_cannot_be(words, part):
    with pytest.raises(Exception, match=r".") as error:
        prepared(f"--dataset fashion-mnist --model-size 8 --batch-size 4 {words}")
    assert part in str(error.value)


def test_graph_does_not_grow_with_the_layout():
    counts = {
        len(
            program(
                f"{RESNET} --shards 4 {RESNET_SPLITS} --replicas {r} --gradient-accumulation-count {a}"
            ).graph.get_operations()
        )
        for r, a in ((1, 8), (2, 32), (16, 4))
    }
    assert len(counts) == 1


def test_stopping_drops_the_unfinished_update_or_ends_after_it():
    built = program(f"{RESNET} --gradient-accumulation-count 4")
    seen: list[float] = []

    def stop_after_three(loss: float, accuracy: float) -> None:
        seen.append(loss)
        if len(seen) == 3:
            built.stop(drop_update=True)

    metrics = built.step([0.05] * 5000, stop_after_three)
    done = int(built.values()["global_step"])
    assert 3 <= done < 5000
    assert len(metrics.loss) == len(seen) == done
    expected = trained(f"{RESNET} --gradient-accumulation-count 4", (done,))
    found = {"losses": metrics.loss, **built.values()}
    built.close()
    assert_same_bits(expected, found)


def test_layers_are_what_the_stages_run(monkeypatch):
    """The grid would notice dropout drawn anew: with draws that depend on the call it fails."""
    drawn = TensorLayers._keep

    def unkeyed(self, x, probability, what, *counters):
        monkeypatch.setattr(TensorLayers, "calls", getattr(TensorLayers, "calls", 0) + 1, raising=False)
        return drawn(self, x, probability, f"{what}/{TensorLayers.calls}", *counters)

    words = f"{EFFICIENTNET} --gradient-accumulation-count 2"
    monkeypatch.setattr(TensorLayers, "_keep", unkeyed)
    changed = trained(f"{words} --enable-recomputation", (2,))
    monkeypatch.undo()
    assert not all(trained(words, (2,))[name].tobytes() == changed[name].tobytes() for name in changed)
