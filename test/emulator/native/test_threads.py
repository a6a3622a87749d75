"""The number of threads changes no bit of the native kernels.

The first session fixes the size of a process's thread pool, so each number needs a process:
`python test_threads.py NUMBER` prints its digests.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cnn_harness.base import plugins
from cnn_harness.emulator.native import library

MODULES = ("test_conv_norm", "test_convolution", "test_native", "test_updates")  # each of them has shared work


@pytest.mark.slow
@pytest.mark.skipif(library.load() is None, reason="the kernels are not built")
def test_thread_count_changes_no_bit():
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (plugins.ROOT, plugins.ROOT / "test" / "helpers")))}
    calls = [
        subprocess.Popen(
            [sys.executable, __file__, str(threads)], cwd=plugins.ROOT, env=environ,
            stdout=subprocess.PIPE, text=True,
        )
        for threads in (1, 2, 5)
    ]  # fmt: skip
    (alone, fewest), (two, some), (five, most) = (call.communicate()[0].strip().rsplit("\n", 1) for call in calls)
    assert (int(some) - int(fewest), int(most) - int(some)) == (1, 3)
    assert alone == two == five and len(alone.splitlines()) == len(MODULES)


def main(threads: int) -> None:
    """Print a digest of each module's shared work, and the number of threads of the process."""
    import tensorflow.compat.v1 as tf

    tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=threads)).close()
    for name in MODULES:
        results = importlib.import_module(name).shared_work()
        print(name, hashlib.sha256(b"".join(each.tobytes() for each in results)).hexdigest())
    print(len(list(Path("/proc/self/task").iterdir())))


if __name__ == "__main__":
    main(int(sys.argv[1]))
