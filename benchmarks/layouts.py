"""The cost of the device layer: speed and memory of layouts against the plain loop, EfficientNet-B0 at 224 px.

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

from base.process import command_line
from benchmarks import _paired

NETWORK = (
    "--precision 32.32 --model efficientnet --model-size B0 --dataset imagenet --synthetic-data --group-norm "
    "--optimiser momentum --seed 1"
)
STAGED = "--shards 4 --pipeline --pipeline-splits block2b block4a block6a"
RECOMPUTED = "--enable-recomputation"


def plain(micro_batch_size: int, accumulation: int = 32) -> str:
    """The loop without stages, replicas or folding."""
    return f"--batch-size {micro_batch_size} --gradient-accumulation-count {accumulation} --fold 1"


# its description, the plain loop, the layout, the least times as fast
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
    """Memory, and the time to build, of layouts that must not cost either: MB of the process at its peak, and of tensors
    that are alive at once."""
    print(f"{'what':<44} {'process':>14} {'tensors':>14}  {'s to build':>14}")
    for name, one, other in (
        ("accumulation 2 -> 64", plain(4, 2), plain(4, 64)),
        ("replicas 1 -> 16", plain(4, 4), f"{plain(4, 4)} --replicas 16"),
    ):
        first, second = (_paired.alone(words(each)) for each in (one, other))
        shares = (second.peak / first.peak - 1, second.alive / first.alive - 1)
        verdict = f"   {100 * shares[0]:+.1f} %, {100 * shares[1]:+.1f} %, must stay under 5 %"
        print(_row(name, *(_change(first, second, what) for what in ("peak", "alive", "built"))) + verdict, flush=True)
    few, many = 16, 32  # a larger micro-batch adds activations alone
    kept, again = ([_paired.alone(words(plain(b, 2) + extra)) for b in (few, many)] for extra in ("", f" {RECOMPUTED}"))
    print(_row("recomputation, micro-batch 32", *(_change(kept[1], again[1], what) for what in ("peak", "alive"))))
    added = {
        what: [(getattr(large, what) - getattr(small, what)) / (many - few) for small, large in (kept, again)]
        for what in ("peak", "alive")
    }
    shares = [again / kept for kept, again in added.values()]
    verdict = f"{'':15}   {shares[0]:.2f}, {shares[1]:.2f} of it, tensors must be at most 0.50"
    print(_row("  for one picture more", *(f"{a:.0f} -> {b:.0f}" for a, b in added.values())) + verdict, flush=True)


def _change(one: _paired.Measured, other: _paired.Measured, what: str) -> str:
    places = 1 if what == "built" else 0
    return f"{getattr(one, what):.{places}f} -> {getattr(other, what):.{places}f}"


def _row(name: str, *cells: str) -> str:
    return f"{name:<44} " + " ".join(f"{cell:>14}" for cell in cells)


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
    parser.add_argument(
        "--rounds", type=command_line.int_between(1), default=7, help="of each way, one after the other [%(default)s]"
    )
    asked = parser.parse_args()
    print(_paired.machine())
    if asked.what != "memory":
        speed(asked.rounds)
    if asked.what != "speed":
        memory()


if __name__ == "__main__":
    main()
