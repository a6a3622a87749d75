"""Average the checkpoints of a run into a new checkpoint.

python weight_avg.py --restore-path logs/<run> --mode mean -N 5 --filename logs/<run>/ckpt/mean_of_5
python weight_avg.py --restore-path logs/<run> --mode exponential --decay 0.97 --filename averaged
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("weight_avg.py")

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import escaped
from cnn_harness.base.process import command_line, commands, tf_runtime
from cnn_harness.base.storage import locks
from cnn_harness.harness.checkpoints import averages, find, read, write
from cnn_harness.harness.checkpoints.checkpoint import AVERAGES, Checkpoint, CheckpointError, updates_in_name
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options.call import Call

_DECAY = 0.99


def main(call: Call) -> int:
    """Average checkpoints: parse the options, find the checkpoints, average them, write the result."""
    options = _parse([*call.words])
    folder, target = Path(options.restore_path), _target(options.filename)
    candidates = averages.candidates(folder)
    trained = [checkpoint for checkpoint in candidates if checkpoint.updates]
    left = len(candidates) - len(trained)
    print(
        f"Found {len(candidates)} checkpoint{'s' * (len(candidates) != 1)} in {escaped(str(folder))}"
        + (", including ckpt-0, the initial weights" if left else "")
    )
    _check_leaves_some(options.discard_last, len(trained))
    with _run_lock(target):
        values = _average(trained, options)
        target.parent.mkdir(parents=True, exist_ok=True)
        tf_runtime.import_tensorflow()  # needed to write the checkpoint
        print(f"Saved the averaged weights to {escaped(write.write_checkpoint(target, values).prefix)}")
    return 0


def _average(trained: Sequence[Checkpoint], options: argparse.Namespace) -> averages.Values:
    """Return the average of the checkpoints selected by --discard-last and -N."""
    used, damaged = read.usable_checkpoints(trained, options.discard_last + options.N if options.N else None)
    for warning in damaged:
        print(warning, file=sys.stderr)
    if damaged and not used:
        number = f"all {len(trained)} checkpoints are" if len(trained) > 1 else "the only checkpoint is"
        raise CheckpointError(f"--restore-path {options.restore_path}: {number} damaged")
    _check_leaves_some(options.discard_last, len(used))
    used = used[: len(used) - options.discard_last]
    used = used[-options.N :] if options.N else used
    print(f"Using {len(used)}: {', '.join(checkpoint.name for checkpoint in used)}")
    return averages.mean(used) if options.mode == averages.MEAN else averages.exponential(used, options.decay)


def _run_lock(target: Path) -> AbstractContextManager[None]:
    """Return the lock of the run directory in which the average is saved; return no lock for any other folder.

    Entering the lock raises OptionError if another process is writing the run.
    """
    parent = target.parent.resolve()
    folder = parent.parent if parent.name == AVERAGES else parent
    is_run = (folder / locks.FILE).exists() or bool(find.numbered(folder))
    return locks.lock_folder(folder) if is_run else nullcontext()


def _target(filename: str) -> Path:
    """Return the checkpoint prefix given by --filename.

    Reject ckpt-<number>, because it would look like a training checkpoint. Reject existing files that are not averages.
    """
    target = find.prefix(Path(filename))
    if os.path.basename(filename) in ("", ".", "..", ".index", ".meta") or target.is_dir():
        raise OptionError(f"--filename {filename} is not a file name; give, for example, logs/<run>/ckpt/averaged")
    if updates_in_name(target.name) is not None:
        raise OptionError(
            f"--filename {target}: ckpt-<number> names training checkpoints; choose another name, for example averaged"
        )
    foreign = write.foreign_file(target)
    if foreign:
        raise OptionError(
            f"--filename {target}: {foreign} exists and is not an average; give another name, or remove the file"
        )
    return target


def _check_leaves_some(discarded: int, count: int) -> None:
    if not count:
        raise OptionError("there is only the checkpoint of the initial weights, which is not averaged; train first")
    if discarded >= count:
        raise OptionError(f"--discard-last {discarded} leaves no checkpoint, as there are {count}; give a smaller number")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.Parser(
        prog="weight_avg.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--restore-path", required=True, metavar="DIR", help="the run directory, which contains the checkpoints *ckpt-<n>")
    add("--filename", required=True, metavar="PREFIX", help="the path of the checkpoint to write")
    add("--mode", required=True, type=str.lower, choices=(averages.MEAN, averages.EXPONENTIAL))
    add(
        "-N",
        type=command_line.int_between(1),
        help="average only the last N checkpoints (default: all except ckpt-0, the initial weights)",
    )
    add(
        "--decay",
        type=command_line.number(0, 1),
        default=_DECAY,
        help=f"decay of the exponential average (default {_DECAY})",
    )
    add(
        "--discard-last",
        type=command_line.int_between(0),
        default=0,
        metavar="K",
        help="skip the last K checkpoints, before -N selects checkpoints",
    )
    options, unknown = parser.parse_known_args(argv)
    known = [option for action in parser._actions for option in action.option_strings]
    for word in unknown:
        print(
            f"ignored {word}: not an option of {commands.prog('weight_avg.py')}{plugins.did_you_mean(word, known)}",
            file=sys.stderr,
        )
    return options


if __name__ == "__main__":
    sys.exit(answers.run_command("weight_avg", main, None))
