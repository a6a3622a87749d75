"""The cost of emulated number formats: whole training steps at 224 px in 16.16 against 32.32, with stochastic rounding of
the updates, in 8.16 against 16.16, and with products in the processor's own BF16.

python benchmarks/precision.py [WORD ...] [--rounds 7]      all words must be in the row's name
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from base.process import command_line
from benchmarks import _paired

BASE = "--dataset imagenet --synthetic-data --optimiser momentum --fold 1 --batch-size 16 --gradient-accumulation-count 2"
B0 = f"{BASE} --model efficientnet --group-norm --group-dim 16 --expand-ratio 4"
RN50 = f"{BASE} --model resnet --model-size 50 --batch-norm"
SINGLE, HALF, NEAREST = "--precision 32.32", "--precision 16.16", "--precision 16.16 --no-stochastic-rounding"
BF16, NATIVE = "--precision bf16.32", "--native-arithmetic"
PAIRS = (
    ("EfficientNet-B0 G16, group norm: 16.16 against 32.32", f"{B0} {SINGLE}", f"{B0} {HALF}", 0.8),
    ("ResNet-50, batch norm: 16.16 against 32.32", f"{RN50} {SINGLE}", f"{RN50} {HALF}", 0.8),
    ("EfficientNet-B0 G16, group norm: 8.16 against 16.16", f"{B0} {HALF}", f"{B0} --precision 8.16", 0.77),
    ("EfficientNet-B0 G16, group norm: bf16.32 native against emulated", f"{B0} {BF16}", f"{B0} {BF16} {NATIVE}", 1.0),
    ("EfficientNet-B0 G16, group norm: bf16.32 native against 32.32", f"{B0} {SINGLE}", f"{B0} {BF16} {NATIVE}", 1.0),
    ("ResNet-50: stochastic rounding against nearest", f"{RN50} {NEAREST}", f"{RN50} {HALF}", 0.97),
)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="measure only rows whose name contains all of these")
    parser.add_argument("--rounds", type=command_line.int_between(1), default=7)
    asked = parser.parse_args()
    _paired.table(PAIRS, asked.words, asked.rounds)


if __name__ == "__main__":
    main()
