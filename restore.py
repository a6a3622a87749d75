"""Resumes the run in a folder: `python restore.py --restore-path logs/<run> [--epochs 60] [any option]`."""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import early_exit

    early_exit.install("restore.py")
    from harness.commands import answers

    answers.answer_early("restore")

import sys
from pathlib import Path

from base.errors import OptionError
from harness.commands import answers, hints
from harness.options import sources
from harness.training.start import Resume
from train import run_training


def main(argv: list[str]) -> int:
    """The run's recorded options under those given now, then on from its newest checkpoint."""
    with hints.resumable("restore", argv):
        path = sources.argument(argv, "restore_path", "restore")
        if not path:
            if answers.asks(argv, "restore"):
                answers.parse(argv, "restore")
            raise OptionError("--restore-path is needed: the folder of the run, as in restore.py logs/<run>")
        run_training(argv, "restore", Resume(Path(path), argv, "restore"))
        return 0


if __name__ == "__main__":
    sys.exit(answers.run_command("restore", main, None))
