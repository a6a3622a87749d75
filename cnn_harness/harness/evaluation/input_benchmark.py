"""Measure the input pipeline without the network (--dataset-benchmark): images per second, and the time of each stage."""

from __future__ import annotations

import time
from collections.abc import Callable

from cnn_harness.base.process import tf_runtime
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run

SECONDS = 4.0  # Each stage is measured for this time.
_WARMING = 3  # This number of batches fills the buffers before each measurement.


def report(
    run: Run, execution: Execution, training: bool, say: Callable[[str], None] = print, seconds: float = SECONDS
) -> None:
    """Measure the input pipeline of training or validation stage by stage, and print the results.

    The time of a stage is the difference between the pipeline up to this stage and the pipeline before it. Stages that run
    in parallel may have time 0.
    """
    tf_runtime.import_tensorflow()
    say(run.summary(execution))
    if run.options.dataset.synthetic_data:
        say("Nothing to measure: synthetic data are generated on the device, without an input pipeline")
        return
    batch = run.plan.samples_per_pass if training else run.validation_batch
    request = run.request(batch, execution.seed)
    stages = run.data_source.stages(request, training)

    def on_device(features):
        return run.data_source.on_device(features["image"], request, features.get("moments")), features["label"]

    before, shares = 0.0, []
    for name, stream, images in stages:
        each = _seconds_each(stream, images, seconds)
        shares.append((name, max(0.0, each - before)))
        before = max(before, each)
    whole = _seconds_each(lambda: stages[-1][1]().map(on_device), batch, seconds)
    shares.append(("transfer", max(0.0, whole - before)))
    total = sum(share for _, share in shares)
    for name, share in shares:
        say(f"  {name:10} {1e3 * share:8.3f} ms per image  {100 * share / total:5.1f} %")
    say(f"mean throughput: {1 / whole:.1f} imgs/sec")


def _seconds_each(stream: Callable[[], object], images: int, seconds: float) -> float:
    """Return the seconds per image of a stream. Each element of the stream has `images` images."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(stream().repeat())
        fetch = tf.group(*tf.nest.flatten(iterator.get_next()))
        session.run(iterator.initializer)
        for _ in range(_WARMING):
            session.run(fetch)
        started, count = time.perf_counter(), 0
        while (taken := time.perf_counter() - started) < seconds or not count:
            session.run(fetch)
            count += 1
        return taken / (count * images)
