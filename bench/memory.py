"""Measure whether accumulation and replicas take more memory or build time, with EfficientNet-B0 at 224 px.

The table shows the peak memory of the process and the peak of live tensors, in MB. The last rows show what recomputation
saves.

python -m bench.memory
"""

from __future__ import annotations

from bench import _paired

NETWORK = (
    "--precision 32.32 --model efficientnet --model-size B0 --dataset imagenet --synthetic-data --group-norm "
    "--optimiser momentum --seed 1 --fold 1"
)
RECOMPUTED = "--enable-recomputation"
FEW, MANY = 16, 32  # images in a micro-batch; a larger micro-batch takes more memory for activations only


def alone(batch: int, accumulation: int, more: str = "") -> _paired.Measured:
    """Measure one training by itself."""
    return _paired.alone(f"{NETWORK} --batch-size {batch} --gradient-accumulation-count {accumulation} {more}".split())


def row(name: str, *cells: str) -> str:
    """Return a line of the table."""
    return f"{name:<44} " + " ".join(f"{cell:>14}" for cell in cells)


def change(one: _paired.Measured, other: _paired.Measured, what: str) -> str:
    """Return one quantity of two measurements as text."""
    places = 1 if what == "built" else 0
    return f"{getattr(one, what):.{places}f} -> {getattr(other, what):.{places}f}"


def main() -> None:
    """Run all measurements."""
    _paired.arguments(__doc__)
    print(row("what", "process", "tensors", "s to build"))
    for name, first, second in (
        ("accumulation 2 -> 64", alone(4, 2), alone(4, 64)),
        ("replicas 1 -> 16", alone(4, 4), alone(4, 4, "--replicas 16")),
    ):
        shares = (second.peak / first.peak - 1, second.alive / first.alive - 1)
        verdict = f"   {100 * shares[0]:+.1f} %, {100 * shares[1]:+.1f} %, must be below 5 %"
        print(row(name, *(change(first, second, what) for what in ("peak", "alive", "built"))) + verdict, flush=True)
    kept, again = ([alone(batch, 2, extra) for batch in (FEW, MANY)] for extra in ("", RECOMPUTED))
    print(row("recomputation, micro-batch 32", *(change(kept[1], again[1], what) for what in ("peak", "alive"))))
    added = {
        what: [(getattr(large, what) - getattr(small, what)) / (MANY - FEW) for small, large in (kept, again)]
        for what in ("peak", "alive")
    }
    shares = [again / kept for kept, again in added.values()]
    verdict = f"{'':15}   ratios {shares[0]:.2f}, {shares[1]:.2f}; the ratio of tensors must be at most 0.50"
    print(row("  for one more image", *(f"{a:.0f} -> {b:.0f}" for a, b in added.values())) + verdict, flush=True)


if __name__ == "__main__":
    main()
