"""Averages the checkpoints of a run folder into one more checkpoint.

python weight_avg.py --restore-path logs/<run> --mode mean -N 5 --filename logs/<run>/ckpt/mean_of_5
python weight_avg.py --restore-path logs/<run> --mode exponential --decay 0.97 --filename averaged
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from harness import early

    early.begin("weight_avg.py")

import argparse
import sys
from pathlib import Path

from harness import averages, checkpoints, command_line, entry, plugins, quiet
from harness.options import OptionError


def main(argv: list[str]) -> int:
    """parse -> find -> average -> write."""
    asked = _parse(argv)
    folder, target = Path(asked.restore_path), Path(asked.filename)
    found = averages.found(folder)
    used = averages.trained(found)
    left = len(found) - len(used)
    print(f"Found {len(found)} checkpoints in {folder}" + (", the initial weights, ckpt-0, among them" if left else ""))
    used = used[: len(used) - asked.discard_last]
    if not used:
        raise OptionError(
            f"--discard-last {asked.discard_last}: no checkpoint is left of {len(found) - left}; give a smaller number"
        )
    if asked.N and len(used) < asked.N:
        print(f"-N {asked.N}: there are only {len(used)}")
    used = used[-asked.N :] if asked.N else used
    print(f"Using {len(used)}: {', '.join(checkpoint.name for checkpoint in used)}")
    quiet.import_tensorflow()
    values = averages.mean(used) if asked.mode == averages.MEAN else averages.exponential(used, asked.decay)
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"Saved the averaged weights to {checkpoints.write(target, values).prefix}")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.Parser(
        prog="weight_avg.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--restore-path", required=True, metavar="DIR", help="the run folder; checkpoints *ckpt-<n> directly in it count")
    add("--filename", required=True, metavar="PREFIX", help="the checkpoint to write")
    add("--mode", required=True, type=str.lower, choices=(averages.MEAN, averages.EXPONENTIAL))
    add("-N", type=command_line.whole(1), help="only the last N checkpoints (default: all but the initial weights, ckpt-0)")
    add("--decay", type=_decay, default=0.99, help="of the exponential average (default %(default)s)")
    add(
        "--discard-last",
        type=command_line.whole(0),
        default=0,
        metavar="K",
        help="leave the last K checkpoints out, before -N is counted",
    )
    asked, unknown = parser.parse_known_args(argv)
    known = [option for action in parser._actions for option in action.option_strings]
    for word in unknown:
        print(f"{word} is not an option of weight_avg.py and is ignored{plugins.did_you_mean(word, known)}", file=sys.stderr)
    return asked


def _decay(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} must lie between 0 and 1")
    return value


if __name__ == "__main__":
    sys.exit(entry.run_command("weight_avg", main, None))
