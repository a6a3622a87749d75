"""Learning-rate schedules: worked examples, warm-up, and one rate per update, independent of earlier calls."""

import importlib
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest

from cnn_harness import LR_Schedules
from cnn_harness.harness.run.length import TrainingLength
from cnn_harness.LR_Schedules._schedule import ScheduledRun, warmup_iterations

NAMES = sorted(p.stem for p in Path(LR_Schedules.__file__).parent.glob("[!_]*.py"))
NEEDED = {"stepped": {"learning_rate_schedule": "0.3,0.6,0.8,0.9"}, "exponential": {"lr_decay_rate": 0.97, "lr_drops": 146}}


def scheduled(peak=1.0, iterations=1000, epochs=100.0, iterations_per_epoch=None):
    per_epoch = iterations_per_epoch or max(1, int(iterations / epochs))
    exact = Fraction(str(epochs))
    return ScheduledRun(peak=peak, iterations=iterations, epochs=exact, iterations_per_epoch=per_epoch,
                       epochs_per_update=exact / iterations)  # fmt: skip


def of_data(images, batch, peak=1.0, **length):
    """Return a run on a number of images."""
    return TrainingLength.of(images=images, global_batch=batch, **length).scheduled(peak)


def rate(name, where=None, **options):
    plugin = importlib.import_module(f"cnn_harness.LR_Schedules.{name}")
    return plugin.build(plugin.Options(**{**NEEDED.get(name, {}), **options}), where or scheduled())


# ResNet-20 on CIFAR: 32 × 2^-6, 160 epochs of 1562.5 updates
RESNET20 = scheduled(32 * 2**-6, 250_000, 160.0, 1562)
# ResNet-50, momentum, batch 1024: 2^-11 × 1024; EfficientNet, RMSprop, batch 768: 2^-14 × 768
RESNET50 = scheduled(1024 * 2**-11, 125_113, 100.0, 1251)
EFFICIENTNET = scheduled(768 * 2**-14, 583_865, 350.0, 1668)
# Fine-tuning, batch 512, exponent -11, on 10,000 images; EfficientNet-B4, LARS: 2^-9.5 × 6144
FINE_TUNE = scheduled(512 * 2**-11, 390, 20.0, 19)
B4_LARS = scheduled(6144 * 2**-9.5, 72_983, 350.0, 208)


@pytest.mark.parametrize(
    "name, where, options, i, expected",
    [
        ("stepped", RESNET20, {"learning_rate_schedule": "0.5,0.75"}, 0, 0.0),
        ("stepped", RESNET20, {"learning_rate_schedule": "0.5,0.75"}, 7812, 0.5),
        ("stepped", RESNET20, {"learning_rate_schedule": "0.5,0.75"}, 125_000, 0.5),
        ("stepped", RESNET20, {"learning_rate_schedule": "0.5,0.75"}, 125_001, 0.05),
        ("stepped", RESNET50, {}, 37_534, 0.05),
        ("stepped", RESNET50, {}, 125_112, 0.5e-4),
        ("cosine", RESNET50, {"warmup_epochs": 0}, 0, 0.5),
        ("cosine", RESNET50, {}, 3000, 0.5 * 3000 / 6255 * 0.5 * (1 + math.cos(math.pi * 3000 / 125_113))),
        ("cosine", FINE_TUNE, {}, 195, 0.125),
        ("exponential", EFFICIENTNET, {}, 4170, 0.046875 * 4170 / 8340 * 0.97),
        ("exponential", EFFICIENTNET, {}, 583_864, 0.046875 * 0.97**145),
        ("exponential", EFFICIENTNET, {"warmup_epochs": 0}, 4000, 0.046875 * 0.97),
        ("exponential", of_data(137, 16, epochs=7.0), {"warmup_epochs": 0}, 42, 0.97**102),
        ("polynomial_decay_lr", B4_LARS, {"warmup_epochs": 70}, 14_596, 8.48528137),
        ("polynomial_decay_lr", B4_LARS, {"warmup_epochs": 70}, 72_983, 8.48528137e-5),
        ("polynomial_decay_lr", scheduled(), {"warmup_epochs": 20}, 600, 0.25 * (1 - 1e-5) + 1e-5),
        ("polynomial_decay_lr", scheduled(), {"warmup_epochs": 0, "poly_lr_decay_power": 1.0}, 250, 0.75 + 0.25e-5),
        ("polynomial_decay_lr", scheduled(4.588), {"abs_end_learning_rate": 1e-4}, 1000, 1e-4),
        ("polynomial_decay_lr", scheduled(), {}, 1500, 1e-5),
        (
            "polynomial_decay_lr",
            scheduled(),
            {"warmup_epochs": 20, "poly_lr_decay_steps": 600},
            400,
            0.25 * (1 - 1e-5) + 1e-5,
        ),
        ("stepped", scheduled(), {"learning_rate_schedule": "0.5,1"}, 999, 0.1),
    ],
)
def test_worked_examples_match(name, where, options, i, expected):
    assert rate(name, where, **options)(i) == pytest.approx(expected, rel=1e-7, abs=1e-15)


@pytest.mark.parametrize(
    "name, options, i, cell",
    [
        ("stepped", {"warmup_epochs": 0}, 650, "0.005"),
        ("stepped", {"warmup_epochs": 0}, 850, "0.0005"),  # 0.0005000000000000001 as a product of doubles
        ("stepped", {"learning_rate_decay": 0.2, "warmup_epochs": 0}, 350, "0.1"),
        ("stepped", {"warmup_epochs": 0.5}, 3, "0.3"),
        ("exponential", {"lr_decay_rate": 0.7, "lr_drops": 10, "warmup_epochs": 0}, 200, "0.245"),
        ("polynomial_decay_lr", {"poly_lr_decay_power": 1.0, "abs_end_learning_rate": 0.0, "warmup_epochs": 0}, 880, "0.06"),
        ("polynomial_decay_lr", {"warmup_epochs": 0.5}, 3, "0.3"),
        (
            "polynomial_decay_lr",
            {"poly_lr_end_ratio": 1.4e-05, "warmup_epochs": 0},
            1000,
            "7e-06",
        ),  # not the product of doubles, 0.5 * 1.4e-05
        ("cosine", {"warmup_epochs": 0}, 0, "0.5"),
    ],
)
def test_rate_is_shortest_exact_decimal(name, options, i, cell):
    assert str(rate(name, scheduled(0.5), **options)(i)) == cell


def test_drops_follow_exact_epochs():
    """floor(epoch / (epochs / drops)) in fractions, also for lengths of a fractional number of batches."""
    draw = random.Random(3)
    for _ in range(300):
        images, batch, drops = draw.randint(5, 5000), draw.randint(1, 300), draw.randint(0, 200)
        epochs = Fraction(draw.randint(1, 4000), 100)
        length = draw.choice([{"epochs": float(epochs)}, {"iterations": draw.randint(1, 3000)}])
        where = of_data(images, batch, **length)
        epochs = Fraction(where.iterations * batch, images) if "iterations" in length else epochs
        one = rate("exponential", where, warmup_epochs=0, lr_drops=drops, lr_decay_rate=0.5)
        for i in {0, 1, where.iterations - 1, draw.randrange(where.iterations), draw.randrange(where.iterations)}:
            assert one(i) == 0.5 ** math.floor(Fraction(i * batch, images) * drops / epochs), (where, i)


@pytest.mark.parametrize(("iterations", "warmup"), [(10, 0.1), (100, 0.7), (350, 3.5)])
def test_warmup_may_fill_whole_run(iterations, warmup):
    """10 x 0.1 // 0.1 is 9 in floats."""
    assert warmup_iterations(scheduled(iterations=iterations, epochs=warmup), warmup) == iterations


@pytest.mark.parametrize("name", NAMES)
def test_value_ignores_earlier_calls(name):
    """A schedule that remembered its drops gave a resumed run other rates."""
    where = scheduled(iterations=500, epochs=50.0)
    in_order = [rate(name, where)(i) for i in range(500)]
    shuffled, one = random.Random(5).sample(range(500), 500), rate(name, where)
    assert {i: one(i) for i in shuffled} == dict(enumerate(in_order))
    assert all(isinstance(value, float) for value in in_order)
    assert len(set(in_order)) > 4


@pytest.mark.parametrize("name, warmup", [("stepped", 78), ("cosine", 78), ("polynomial_decay_lr", 78), ("exponential", 75)])
def test_warmup_has_documented_length(name, warmup):
    """1,000 updates in 64 epochs: 1000 × 5 ÷ 64 = 78; exponential counts whole epochs of 15 updates."""
    where = scheduled(iterations=1000, epochs=64.0)
    with_ramp, bare = rate(name, where), rate(name, where, warmup_epochs=0)
    shape = (lambda i: 1.0) if name == "polynomial_decay_lr" else bare  # only the polynomial's own curve starts later
    assert [with_ramp(i) for i in range(warmup)] == pytest.approx([i / warmup * shape(i) for i in range(warmup)])
    assert with_ramp(warmup) == pytest.approx(shape(warmup))


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        *(
            ("stepped", {"learning_rate_schedule": text}, "learning_rate_schedule")
            for text in ("", "0.5,", "0,0.5", "0.7,0.5")
        ),
        ("stepped", {"learning_rate_schedule": None}, "learning_rate_schedule"),
        ("stepped", {"learning_rate_decay": 0}, "learning_rate_decay"),
        ("exponential", {"lr_drops": None, "lr_decay_rate": None}, "lr_decay_rate and lr_drops"),
        ("exponential", {"lr_drops": -1}, "lr_drops"),
        ("cosine", {"warmup_epochs": math.nan}, "warmup_epochs"),
        ("polynomial_decay_lr", {"poly_lr_decay_power": 0}, "poly_lr_decay_power"),
        ("polynomial_decay_lr", {"poly_lr_decay_steps": 40}, "poly_lr_decay_steps is 40"),  # all of them warm-up
    ],
)
def test_impossible_values_are_named(name, options, named):
    with pytest.raises(ValueError, match=named):
        rate(name, **options)
