"""What the device layer costs and saves: speed and memory of layouts against the plain loop, EfficientNet-B0 at 224 px.

python benchmarks/layouts.py                 everything, about 25 minutes on two cores
python benchmarks/layouts.py speed --rounds 9
python benchmarks/layouts.py memory
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _paired

NETWORK = (
    "--model efficientnet --model-size B0 --dataset imagenet --synthetic-data --group-norm --optimiser momentum --seed 1"
)
STAGED = "--shards 4 --pipeline --pipeline-splits block2b block4a block6a"
RECOMPUTED = "--enable-recomputation"


def plain(micro_batch: int, accumulation: int = 32) -> str:
    """The loop without stages, replicas or folding."""
    return f"--batch-size {micro_batch} --gradient-accumulation-count {accumulation} --fold 1"


# what is said of it, the plain loop, the layout, at least so many times as fast
SPEED = (
    ("4 stages x 4 replicas x accumulation 8, micro-batch 4, Interleaved", plain(4),
     f"--batch-size 4 --replicas 4 --gradient-accumulation-count 8 --fold 1 {STAGED}", 0.95),
    ("the same, Grouped", plain(4),
     f"--batch-size 4 --replicas 4 --gradient-accumulation-count 8 --fold 1 {STAGED} --pipeline-schedule Grouped", 0.95),
    ("--fold auto, micro-batch 2", plain(2), plain(2).replace("fold 1", "fold auto"), 1.25),
    ("--fold auto, micro-batch 4", plain(4), plain(4).replace("fold 1", "fold auto"), 1.05),
    ("--enable-recomputation, micro-batch 16", plain(16, 2), f"{plain(16, 2)} {RECOMPUTED}", None),
)  # fmt: skip


def speed(rounds: int) -> None:
    """Images per second of each layout against the plain loop."""
    print(
        "layout                                                              times the plain loop          img/s    at least"
    )
    for name, one, other, least in SPEED:
        first, second = _paired.pair(words(one), words(other), rounds)
        ratio = _paired.ratios(first, second)
        speeds = f"{statistics.median(first.speeds):.1f} -> {statistics.median(second.speeds):.1f}"
        print(
            f"{name:<66}  {_paired.spread(ratio):<22} {speeds:>14}    {verdict(statistics.median(ratio), least)}", flush=True
        )


def memory() -> None:
    """Peak memory, and the time to build, of layouts that must not cost either."""
    print(f"{'what':<48} {'MB':>14}  {'s to build':>14}")
    for name, one, other in (
        ("accumulation 2 -> 64", plain(4, 2), plain(4, 64)),
        ("replicas 1 -> 16", plain(4, 4), f"{plain(4, 4)} --replicas 16"),
    ):
        first, second = (_paired.alone(words(each)) for each in (one, other))
        share = second.peak / first.peak - 1
        built = f"{first.built:.1f} -> {second.built:.1f}"
        sizes = f"{first.peak:.0f} -> {second.peak:.0f}"
        print(f"{name:<48} {sizes:>14}  {built:>14}   {100 * share:+.1f} %, must stay under 5 %", flush=True)
    few, many = 16, 32  # what a larger micro-batch adds is activations
    kept, again = ([_paired.alone(words(plain(b, 2) + extra)) for b in (few, many)] for extra in ("", f" {RECOMPUTED}"))
    parts = [(two.peak - one.peak) / (many - few) for one, two in (kept, again)]
    sizes = f"{kept[1].peak:.0f} -> {again[1].peak:.0f}"
    print(f"{'recomputation, micro-batch 32':<48} {sizes:>14}")
    print(f"{'  activations of one picture':<48} {f'{parts[0]:.0f} -> {parts[1]:.0f}':>14}{'':16}   "
          f"{parts[1] / parts[0]:.2f} of them, must be at most 0.50")  # fmt: skip


def words(layout: str) -> list[str]:
    """All options of a layout."""
    return f"{NETWORK} {layout}".split()


def verdict(value: float, least: float | None) -> str:
    """A bound and whether it is kept."""
    return "" if least is None else f"{least:.2f}: {'kept' if value >= least else 'MISSED'}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("speed", "memory", "all"), default="all")
    parser.add_argument("--rounds", type=int, default=7, help="of each way, one after the other [%(default)s]")
    asked = parser.parse_args()
    print(_paired.machine())
    if asked.what != "memory":
        speed(asked.rounds)
    if asked.what != "speed":
        memory()


if __name__ == "__main__":
    main()
