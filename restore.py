"""Resume a run: `python restore.py --restore-path logs/<run> [--epochs 60] [other options]`."""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("restore.py")
    from cnn_harness.harness.commands import answers

    answers.answer_early("restore")

import sys
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.harness.commands import answers, hints, run_list
from cnn_harness.harness.options import sources
from cnn_harness.harness.training.start import Resume
from cnn_harness.train import run_training


def main(argv: list[str]) -> int:
    """Resume a run from its newest checkpoint; return the exit code. Options in `argv` override the recorded options."""
    with hints.resumable("restore", argv):
        path = sources.argument(argv, "restore_path", "restore")
        if not path:
            if answers.asks(argv, "restore"):
                answers.parse(argv, "restore")
            missing = "--restore-path is missing; give the run directory, as in restore.py logs/<run>"
            raise OptionError(missing, run_list.listed())
        run_training(argv, "restore", Resume(Path(path), argv, "restore"))
        return 0


if __name__ == "__main__":
    sys.exit(answers.run_command("restore", main, None))
