"""Log rows and checkpoints: tables from (length, periods) to the updates where they are due; a resumed run has the same."""

import random

import pytest

from cnn_harness.harness.run.length import TrainingLength


def of(iterations=None, *, images=1000, global_batch=10, **rest):
    """Return the schedule of a run, with 100 updates per epoch by default."""
    return TrainingLength.of(images=images, global_batch=global_batch, iterations=iterations, **rest)


@pytest.mark.parametrize(
    "images, batch, epochs, per_epoch, iterations",
    [
        (50_000, 32, 160, 1562, 250_000),
        (1_281_167, 1024, 100, 1251, 125_113),
        (1_281_167, 768, 350, 1668, 583_865),
        (10, 100, 1, 1, 1),  # a batch larger than the data set
        (10, 100, 25, 1, 2),
        (1000, 10, 0.5, 100, 50),
    ],
)
def test_length_in_epochs_is_rounded_to_updates(images, batch, epochs, per_epoch, iterations):
    length = of(images=images, global_batch=batch, epochs=epochs)
    assert (length.iterations_per_epoch, length.iterations, length.epochs) == (per_epoch, iterations, epochs)


@pytest.mark.parametrize(
    "iterations, rest, steps",
    [
        (10, {}, [(0, 10)]),  # 500 updates per log row: the step is cut, and the run is not lengthened
        (10, {"batches_per_step": 10}, [(0, 10)]),
        (7, {"log_freq": 3}, [(0, 3), (3, 6), (6, 7)]),
        (20, {"log_freq": 10, "batches_per_step": 4}, [(0, 5), (5, 10), (10, 15), (15, 20)]),  # round(2.5) = 2
        (250, {"logs_per_epoch": 1}, [(0, 100), (100, 200), (200, 250)]),
        (3, {"logs_per_epoch": 1000}, [(0, 1), (1, 2), (2, 3)]),  # more rows than updates: every update
    ],
)
def test_host_steps_cover_run(iterations, rest, steps):
    assert list(of(iterations, **rest).host_steps()) == steps


@pytest.mark.parametrize(
    "start, stop, steps",
    [
        (0, 7, [(0, 3), (3, 6), (6, 7)]),
        (7, None, [(7, 9), (9, 10)]),
        (6, 99, [(6, 9), (9, 10)]),
        (10, None, []),
    ],
)
def test_steps_off_grid_return_to_it(start, stop, steps):
    length = of(10, log_freq=3)
    assert list(length.host_steps(start, stop)) == steps
    assert all(length.host_step_start(first) == first // 3 * 3 for first, _ in steps)


def log_points(length: TrainingLength) -> list[int]:
    """Return the updates after which a row is logged."""
    return [end for first, end in length.host_steps() if length.log_due(first, end)]


@pytest.mark.parametrize(
    "iterations, rest, points",
    [
        (10, {}, [10]),
        (60, {"log_freq": 20, "batches_per_step": 5}, [5, 20, 40, 55, 60]),  # first, multiples, last two
        (62, {"log_freq": 20, "batches_per_step": 5}, [5, 20, 40, 60, 62]),
        (60, {"logs_per_epoch": 0, "batches_per_step": 5}, [5, 60]),
        (250, {"logs_per_epoch": 2}, [50, 100, 150, 200, 250]),
        (20, {"log_freq": 1, "batches_per_step": 1}, list(range(1, 21))),
    ],
)
def test_log_rows_are_due_at_listed_updates(iterations, rest, points):
    assert log_points(of(iterations, **rest)) == points


@pytest.mark.parametrize(
    "iterations, rest, points",
    [
        (400, {"log_freq": 10}, [100, 200, 300, 400]),
        (430, {"log_freq": 10}, [100, 200, 300, 400, 430]),  # an epoch's end, also near the end of the run
        (405, {"log_freq": 30}, [120, 210, 300, 405]),  # both in the last host step
        (200, {"log_freq": 10, "ckpts_per_epoch": 4}, [30, 50, 80, 100, 130, 150, 180, 200]),
        (100, {"log_freq": 20, "ckpts_per_epoch": 1_000_000}, [20, 40, 60, 80, 100]),
        (900, {"log_freq": 50, "epochs_per_ckpt": 3}, [300, 600, 900]),
        (900, {"log_freq": 50, "ckpts_per_epoch": 0, "epochs_per_ckpt": 4}, [400, 800, 900]),
        (400, {"log_freq": 10, "ckpts_per_epoch": 0}, []),
        (500, {"log_freq": 10, "ckpt_epochs_offset": 3}, [300, 400, 500]),
        (200, {"log_freq": 10, "ckpt_epochs_offset": 9}, [200]),  # the last one always
        (200, {"log_freq": 10, "release": "2.0"}, [10, 100, 190, 200]),
    ],
)
def test_checkpoints_are_due_at_listed_updates(iterations, rest, points):
    assert of(iterations, **rest).checkpoint_points() == points


@pytest.mark.parametrize(
    "images, batch", [(204, 16), (10, 16), (16, 16), (1877 * 16, 16), (2502 * 16 - 1, 16), (50_000, 32)]
)
def test_whole_epochs_end_at_checkpoints(images, batch):
    length = TrainingLength.of(images=images, global_batch=batch, epochs=3, logs_per_epoch=1, whole_epochs=True)
    assert [round(length.epoch(end), 2) for end in length.checkpoint_points()] == [1, 2, 3]
    assert length.iterations_per_epoch == -(-images // batch)  # each epoch has every image


@pytest.mark.parametrize("seed", range(200))
def test_resumed_schedule_equals_unbroken(seed):
    """A stop anywhere, even twice within one host step, moves no boundary, log row or checkpoint."""
    draw = random.Random(seed)
    length = of(
        draw.randint(1, 400),
        global_batch=draw.choice([1, 3, 10, 64, 5000]),
        log_freq=draw.choice([None, draw.randint(1, 90)]),
        logs_per_epoch=draw.choice([None, 0, draw.randint(1, 200)]),
        batches_per_step=draw.randint(1, 60),
        ckpts_per_epoch=draw.randint(0, 12),
        epochs_per_ckpt=draw.choice([0, 0, 1, 2]),
        ckpt_epochs_offset=draw.choice([0, 0, 1]),
    )
    whole = list(length.host_steps())
    assert [0] + [end for _, end in whole] == [first for first, _ in whole] + [length.iterations]
    assert max(end - first for first, end in whole) <= length.updates_per_host_step
    assert log_points(length)[-1] == length.iterations

    stops = sorted(draw.randint(0, length.iterations) for _ in range(3)) + [length.iterations]
    pieces = [piece for start, stop in zip([0] + stops, stops) for piece in length.host_steps(start, stop)]
    assert [0] + [end for _, end in pieces] == [first for first, _ in pieces] + [length.iterations]
    assert [end for first, end in pieces if length.log_due(first, end)] == log_points(length)
    assert [end for first, end in pieces if length.checkpoint_due(first, end)] == length.checkpoint_points()

    resumed = list(length.host_steps(stops[0]))
    assert resumed[1:] == whole[len(whole) - len(resumed) + 1 :]
    assert not resumed or length.host_step_start(resumed[0][0]) == whole[-len(resumed)][0]


@pytest.mark.parametrize(
    "rest, text",
    [
        ({}, "give epochs or iterations"),
        ({"epochs": 0}, "epochs is 0"),
        ({"iterations": -1}, "iterations is -1"),
        ({"epochs": 1, "global_batch": 0}, "global_batch is 0"),
    ],
)
def test_impossible_lengths_are_rejected(rest, text):
    with pytest.raises(ValueError, match=text):
        of(**rest)
