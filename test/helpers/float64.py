"""Run a command in float64: `python test/helpers/float64.py train [option]...`.

Used by tests that compare several processes with one.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import cnn_harness.train as train
from cnn_harness import restore
from cnn_harness.base.process import tf_runtime
from cnn_harness.harness.commands import answers

if __name__ == "__main__":
    tf_runtime.import_tensorflow()
    import tensorflow.compat.v1 as tf

    from cnn_harness import ipu_utils

    ipu_utils.TrainingSpec = partial(ipu_utils.TrainingSpec, dtype=tf.float64)
    script, words = sys.argv[1], sys.argv[2:]
    sys.argv = [script, *words]
    sys.exit(answers.run_command(script, {"train": train.main, "restore": restore.main}[script], words))
