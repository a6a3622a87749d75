"""Pairs of networks and ways to train them, EfficientNet-B0 at 224 px, images per second turn by turn.

python benchmarks/networks.py [--rounds 7] [words of a row's name]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from base.process import command_line
from benchmarks import _paired

BASE = (
    "--precision 32.32 --model efficientnet --dataset imagenet --synthetic-data --optimiser momentum --fold 1 "
    "--batch-size 16"
)
G16 = "--group-dim 16 --expand-ratio 4"
PAIRS = (
    ("groups of 16, expansion 4, against depthwise, group norm", "--group-norm", f"--group-norm {G16}"),
    ("the same with batch norm", "--batch-norm", f"--batch-norm {G16}"),
    ("group norm against batch norm", "--batch-norm", "--group-norm"),
    ("layer norm and proxy norm against group norm, groups of 16", f"--group-norm {G16}",
     f"--group-norm --groups 1 --proxy-norm {G16}"),
    ("fine-tuning Top and block7 against all, groups of 16", f"--group-norm {G16}",
     f"--group-norm {G16} --variable-filter Top block7"),
)  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="measure only rows whose name contains all of these")
    parser.add_argument("--rounds", type=command_line.int_between(1), default=7)
    asked = parser.parse_args()
    _paired.table(
        [(name, f"{BASE} {one}", f"{BASE} {other}", None) for name, one, other in PAIRS], asked.words, asked.rounds
    )


if __name__ == "__main__":
    main()
