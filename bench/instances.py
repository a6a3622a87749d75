"""Compare training in two processes (instances) of one replica each with training in one process of two replicas.

The benchmark measures the speed, the bytes sent for each weight update, and the start-up time.

python -m bench.instances [--rounds 9]
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench import _paired
from cnn_harness.harness.distributed import launch
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

B0 = "--model efficientnet --model-size B0 --group-dim 16 --expand-ratio 4 --dataset imagenet --synthetic-data --group-norm"
RN50 = "--model-size 50 --dataset imagenet --synthetic-data --group-norm"
RN8 = "--model-size 8 --dataset cifar-10 --synthetic-data --batch-norm --batch-size 32"
ROWS = {  # name: (options of train.py, number of weight updates in a round)
    "EfficientNet-B0 G16, group norm, 224 px, accumulation 8": (f"{B0} --batch-size 4 --gradient-accumulation-count 8", 1),
    "ResNet-50, group norm, 224 px, accumulation 4": (f"{RN50} --batch-size 4 --gradient-accumulation-count 4", 1),
    "ResNet-8 on CIFAR, micro-batch 32, no accumulation": (RN8, 40),
    "the same, accumulation 16": (f"{RN8} --gradient-accumulation-count 16", 4),
}
COMMON = "--precision 32.32 --optimiser momentum --seed 1"
STARTS = 3


def two_instances(words: list[str], updates: int) -> _paired.Instances:
    """Start two instances that train one network together, on free ports."""
    return _paired.Instances(words, updates, [f"localhost:{port}" for port in launch.free_ports(2)])


def received() -> int:
    """Return the bytes that this host has received over loopback."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def speed(rounds: int) -> None:
    """Print the images per second and the bytes sent for an update. Compare the bytes with the optimum of a ring, in which
    each of n instances sends 2 (n - 1) / n times the bytes of the gradients."""
    print(f"{'what':<58} {'speed-up over one':<22} {'img/s':>15} {'MB an update':>13} {'of the optimum':>15}")
    for name, (options, updates) in ROWS.items():
        words = [*COMMON.split(), *options.split()]
        one, both = _paired.Worker(_paired.ours([*words, "--replicas", "2"], updates)), two_instances(words, updates)
        one.round()
        both.round()
        sent: list[int] = []

        def counted(both: _paired.Instances = both, sent: list[int] = sent) -> float:
            before = received()
            speed = both.round()
            sent.append(received() - before)
            return speed

        speeds = _paired.turns([one.round, counted], rounds)
        one.end()
        both.end()
        parameters = prepare(cli.parse(words, "train", environ={}).options, {}).run.network.trainable_parameters
        each, best = sum(sent) / (rounds * updates), 2 * 4 * parameters
        ratio = [b / a for a, b in zip(*speeds)]
        shown = " -> ".join(f"{statistics.median(s):.1f}" for s in speeds)
        print(f"{name:<58} {_paired.spread(ratio):<22} {shown:>15} {each / 1e6:>13.2f} {each / best:>15.2f}", flush=True)


def starts() -> None:
    """Print the seconds from the start of the processes to the first update."""
    words = [*COMMON.split(), *RN8.split()]
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(STARTS):
        for which in (0, 1):
            begun = time.perf_counter()
            worker = two_instances(words, 1) if which else _paired.Worker(_paired.ours([*words, "--replicas", "2"]))
            worker.round()
            taken[which].append(time.perf_counter() - begun)
            worker.end()
    more = [b - a for a, b in zip(*taken)]
    alone, two = (statistics.median(seconds) for seconds in taken)
    print(f"first update after {alone:.1f} s in one process, {two:.1f} s in two: {_paired.spread(more)} s more")


def main() -> None:
    """Run all measurements."""
    rounds = _paired.arguments(__doc__, rounds=9).rounds
    speed(rounds)
    starts()


if __name__ == "__main__":
    main()
