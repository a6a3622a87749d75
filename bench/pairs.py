"""Compare the training speed of pairs of networks, number formats and layouts at 224 px.

python -m bench.pairs [WORD ...] [--rounds 7]      measure the pairs whose name contains all words, such as `layout`
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench import _paired

COMMON = "--dataset imagenet --synthetic-data --optimiser momentum"
SINGLE, HALF = "--precision 32.32", "--precision 16.16"
BF16, BF16_UNITS = "--precision bf16.32 --no-native-arithmetic", "--precision bf16.32 --native-arithmetic"
G16 = "--group-dim 16 --expand-ratio 4"
STAGED = "--replicas 4 --fold 1 --shards 4 --pipeline --pipeline-splits block2b block4a block6a"
# A pair: its name, the options of both runs, of the first only, of the second only, the required speed-up of the second.
Row = tuple[str, str, str, str, float | None]


def rows() -> Iterator[Row]:
    """Yield every pair."""
    base = f"{COMMON} {SINGLE} --model efficientnet --fold 1 --batch-size 16"
    yield "network: groups of 16, expansion 4, against depthwise, group norm", f"{base} --group-norm", "", G16, None
    yield "network: the same with batch norm", f"{base} --batch-norm", "", G16, None
    yield "network: group norm against batch norm", base, "--batch-norm", "--group-norm", None
    base += f" --group-norm {G16}"
    yield "network: layer norm and proxy norm against group norm, groups of 16", base, "", "--groups 1 --proxy-norm", None
    yield "network: fine-tuning Top and block7 against all, groups of 16", base, "", "--variable-filter Top block7", None
    base = f"{COMMON} --fold 1 --batch-size 16 --gradient-accumulation-count 2"
    b0, rn50 = f"{base} --model efficientnet --group-norm {G16}", f"{base} --model resnet --model-size 50 --batch-norm"
    yield "format: EfficientNet-B0 G16, group norm: 16.16 against 32.32", b0, SINGLE, HALF, 0.8
    yield "format: ResNet-50, batch norm: 16.16 against 32.32", rn50, SINGLE, HALF, 0.8
    yield "format: EfficientNet-B0 G16, group norm: 8.16 against 16.16", b0, HALF, "--precision 8.16", 0.77
    yield "format: EfficientNet-B0 G16: bf16.32 native against emulated", b0, BF16, BF16_UNITS, 1.0
    yield "format: EfficientNet-B0 G16: bf16.32 native against 32.32", b0, SINGLE, BF16_UNITS, 1.0
    yield "format: ResNet-50: random against nearest", f"{rn50} {HALF}", "--no-stochastic-rounding", "", 0.97
    base = f"{COMMON} {SINGLE} --model efficientnet --model-size B0 --group-norm --seed 1 --gradient-accumulation-count"
    one, other = "32 --fold 1", f"8 {STAGED} --pipeline-schedule"
    four = f"--batch-size 4 {base}"
    yield "layout: 4 stages x 4 replicas x accumulation 8, micro-batch 4", four, one, f"{other} Interleaved", 0.95
    yield "layout: the same, Grouped", four, one, f"{other} Grouped", 0.95
    yield "layout: --fold auto, micro-batch 2", f"--batch-size 2 {base}", one, "32 --fold auto", 1.25
    yield "layout: --fold auto, micro-batch 4", four, one, "32 --fold auto", 1.05
    yield "layout: --enable-recomputation, micro-batch 16", f"--batch-size 16 {base}", "2", "2 --enable-recomputation", None


def main() -> None:
    """Measure the requested pairs."""
    asked = _paired.arguments(__doc__, rounds=7, words=True)
    print(f"{'what':<68} {'speed-up':<22} {'img/s':>14} {'MB':>14}  at least")
    for name, both, one, other, least in rows():
        if not all(word in name for word in asked.words):
            continue
        first, second = _paired.pair(f"{both} {one}".split(), f"{both} {other}".split(), asked.rounds)
        speeds = f"{statistics.median(first.speeds):.1f} -> {statistics.median(second.speeds):.1f}"
        memory = f"{first.peak:.0f} -> {second.peak:.0f}"
        ratio = _paired.spread([b / a for a, b in zip(first.speeds, second.speeds)])
        print(f"{name:<68} {ratio:<22} {speeds:>14} {memory:>14}  {least or ''}", flush=True)


if __name__ == "__main__":
    main()
