"""Run one instance of a group that all-reduces numbers in a wire format.

`python test/helpers/all_reduce.py ADDRESSES INSTANCE FORMAT FILE` writes the FP32 sums to FILE.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np

SIZES = (1, 7, 1000, 30_011)


def parts(instance: int) -> dict[str, np.ndarray]:
    """Return what an instance adds: numbers of all magnitudes, some below FP16's range and some above."""
    rng = np.random.default_rng(instance)
    return {f"{n}": (rng.standard_normal(n) * 2.0 ** rng.uniform(-30, 17, n)).astype(np.float32) for n in SIZES}


def main(addresses: list[str], instance: int, wire: str, file: str) -> None:
    """All-reduce every instance's parts in one bucket."""
    from cnn_harness.base.process import tf_runtime

    tf_runtime.import_tensorflow()
    import tensorflow.compat.v1 as tf

    from cnn_harness.emulator.lowering.policy import PrecisionPolicy
    from cnn_harness.emulator.plan import number_formats
    from cnn_harness.emulator.plan.precision import SINGLE
    from cnn_harness.emulator.program.worker_group import WorkerGroup

    group = WorkerGroup(addresses, instance)
    options = group.begin_call_sequence()
    with tf.Graph().as_default() as graph, tf.device(f"{group.device}/cpu:0"):
        policy = PrecisionPolicy(SINGLE, 0, tf.float32)
        sent = {
            name: policy.cast_for_all_reduce(tf.constant(x) / group.size, number_formats.by_name(wire))
            for name, x in parts(instance).items()
        }
        sums = {name: tf.cast(x, tf.float32) for name, x in group.all_reduce_bucket(sent).items()}
        with group.session(graph, tf.ConfigProto()) as session:
            np.savez(file, **session.run(sums, options=options))
            session.run(group.barrier(), options=options)  # so that no server ends early


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), *sys.argv[3:])
