"""Compare the speed of this harness with a plain TensorFlow loop that trains the same ResNet-8. They take turns in one
process.

python -m bench.plain [--rounds 9] [--check]

--check: exit with code 1 if the speed-up is a quarter below the usual one in three attempts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # for the plain loop, too
import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.base.process import command_line
from cnn_harness.emulator.native import library
from cnn_harness.harness.programs.build import training_program
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.cluster import seed_of
from cnn_harness.harness.run.resolve import prepare

BATCH, SIDE, CLASSES = 32, 32, 10
UPDATES = 8  # weight updates in one round
ATTEMPTS = 3
GROUPS = 4
# The usual speed-ups with native kernels and without. Two cores of an AMD EPYC reach 1.05 and 1.90 with kernels.
# The margin is for processors that we have not measured.
USUAL = {"batch norm": (1.0, 0.95), "group norm": (1.6, 1.2)}
LOST = 0.75  # --check fails below this share of the usual speed-up
NORMS = {"batch norm": ("--batch-norm",), "group norm": ("--group-norm", "--groups", str(GROUPS))}
OPTIONS = ("--dataset", "cifar-10", "--synthetic-data", "--model-size", "8", "--batch-size", str(BATCH), "--iterations", "8",
           "--precision", "32.32", "--optimiser", "momentum", "--weight-decay", "1e-4", "--no-validation")  # fmt: skip
Work = Callable[[], object]


def harness(norm: str) -> Work:
    """Return a function that runs UPDATES weight updates of this harness."""
    options = cli.parse([*OPTIONS, *NORMS[norm], "--batches-per-step", str(UPDATES)], "train", environ={}).options
    program = training_program(prepare(options, {}).run, seed_of(options), 0)
    program.compile()
    return lambda: program.step([1e-4] * UPDATES)


def plain(norm: str) -> Work:
    """Return a function that runs UPDATES weight updates in plain TensorFlow, with a session call for each update."""
    with tf.Graph().as_default() as graph:
        images = tf.get_variable(
            "images", [BATCH, SIDE, SIDE, 3], initializer=tf.random_normal_initializer(), trainable=False
        )
        labels = tf.constant(np.arange(BATCH) % CLASSES)
        logits = _resnet8(images.read_value(), _batch_norm if norm == "batch norm" else _group_norm)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        loss += 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
        train = tf.train.MomentumOptimizer(1e-4, 0.9).minimize(loss)
        initialise = tf.global_variables_initializer()
    session = tf.Session(graph=graph)
    session.run(initialise)
    update = session.make_callable([loss, train])
    return lambda: [update() for _ in range(UPDATES)]


def _resnet8(x: tf.Tensor, norm: Callable[[tf.Tensor, str], tf.Tensor]) -> tf.Tensor:
    x = tf.nn.relu(norm(_conv(x, 16, 1, "stem"), "stem"))
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        name, channels = f"block{filters}", x.shape[-1]
        y = tf.nn.relu(norm(_conv(x, filters, stride, f"{name}a"), f"{name}a"))
        y = norm(_conv(y, filters, 1, f"{name}b"), f"{name}b")
        more = (filters - channels) // 2
        x = tf.nn.relu(y + tf.pad(x[:, ::stride, ::stride], [[0, 0]] * 3 + [[more, more]]))
    x = tf.reduce_mean(x, [1, 2])
    kernel = tf.get_variable("classifier", [x.shape[-1], CLASSES])
    return tf.matmul(x, kernel) + tf.get_variable("bias", [CLASSES], initializer=tf.zeros_initializer())


def _conv(x: tf.Tensor, filters: int, stride: int, name: str) -> tf.Tensor:
    return tf.nn.conv2d(x, tf.get_variable(f"{name}/kernel", [3, 3, x.shape[-1], filters]), stride, "SAME")


def _affine(x: tf.Tensor, name: str) -> tuple[tf.Variable, tf.Variable]:
    channels = [x.shape[-1]]
    return (
        tf.get_variable(f"{name}/gamma", channels, initializer=tf.ones_initializer()),
        tf.get_variable(f"{name}/beta", channels, initializer=tf.zeros_initializer()),
    )


def _batch_norm(x: tf.Tensor, name: str) -> tf.Tensor:
    return tf.nn.fused_batch_norm(x, *_affine(x, name))[0]


def _group_norm(x: tf.Tensor, name: str) -> tf.Tensor:
    height, width, channels = x.shape[1:]
    grouped = tf.reshape(x, [BATCH, height, width, GROUPS, channels // GROUPS])
    mean, variance = tf.nn.moments(grouped, [1, 2, 4], keepdims=True)
    gamma, beta = _affine(x, name)
    return tf.reshape((grouped - mean) * tf.math.rsqrt(variance + 1e-5), tf.shape(x)) * gamma + beta


def ratios(norm: str, rounds: int) -> list[float]:
    """Return the speed-up of this harness over the plain loop in each of `rounds` rounds."""
    ours, theirs = harness(norm), plain(norm)
    for work in (ours, theirs, ours, theirs):  # warm up
        work()
    return [_seconds(theirs) / _seconds(ours) for _ in range(rounds)]


def _seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(rounds: int, check: bool) -> int:
    """Print the median speed-up for each norm. If `check` is true, return 1 if one is a quarter too low in all attempts."""
    lost = [_lost(norm, rounds, ATTEMPTS if check else 1) for norm in NORMS]
    return int(check and any(lost))


def _lost(norm: str, rounds: int, attempts: int) -> bool:
    usual = USUAL[norm][0 if library.identity() else 1]
    for _ in range(attempts):
        found = ratios(norm, rounds)
        middle = statistics.median(found)
        print(f"ResNet-8, {norm}: {middle:.2f} times the plain loop ({min(found):.2f} to {max(found):.2f})", flush=True)
        if middle >= LOST * usual:
            return False
    print(f"{norm}: the speed-up is more than a quarter below the usual {usual:g}")
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=command_line.int_between(1), default=9, help="pairs of rounds")
    parser.add_argument("--check", action="store_true", help="exit with code 1 if a speed-up is a quarter too low")
    asked = parser.parse_args()
    sys.exit(main(asked.rounds, asked.check))
