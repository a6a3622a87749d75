"""Resume a run: `python restore.py --restore-path logs/<run> [--epochs 60] [other options]`."""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("restore.py")
    from cnn_harness.harness.commands import answers

    call = answers.answer_early("restore")

import sys
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.harness.commands import answers, hints, run_list
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.training.start import Resume
from cnn_harness.train import run_training


def main(call: Call) -> int:
    """Resume a run from its newest checkpoint; return the exit code. The options of the call override the recorded ones."""
    with hints.resumable(call):
        path = call.argument("restore_path")
        if not path:
            if answers.asks(call):
                answers.parse(call)
            missing = "--restore-path is missing; give the run directory, as in restore.py logs/<run>"
            raise OptionError(missing, run_list.listed())
        run_training(call, Resume(Path(path), call))
        return 0


if __name__ == "__main__":
    sys.exit(answers.run_command("restore", main, call))
