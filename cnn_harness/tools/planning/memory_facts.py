"""Published facts about memory, and the fit of the memory constants to them.

`RAN` trainings and inferences ran on IPUs, as did every named configuration. `FAILED` trainings did not fit. The fit finds
the constants for which the smallest margin is the largest. A margin is the free memory of the fullest IPU, or for a training
that did not fit the missing memory, as a fraction of the IPU's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cnn_harness.emulator.cost_model import memory, systems
from cnn_harness.emulator.cost_model.balance import restaged
from cnn_harness.emulator.cost_model.memory import IpuSizes
from cnn_harness.emulator.cost_model.memory_constants import MEMORY_BOUNDS, MemoryConstants
from cnn_harness.emulator.cost_model.systems import Device
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.configs import ConfigFile
from cnn_harness.harness.options.releases import split_name
from cnn_harness.harness.options.sources import DEFAULT_CONFIG_PATH
from cnn_harness.tools.planning.plan_options import run_of

MIB = 2**20
SAMPLES, ROUNDS = 6000, 8
AGREEING = 8  # this many sets of constants stand for all that agree with the facts.


class Fact(NamedTuple):
    """A training or an inference that fitted or did not fit on an IPU. `options` are options of train.py."""

    name: str
    ipu: str
    options: str
    fitted: bool = True
    training: bool = True

    @property
    def workload(self) -> Workload:
        """The workload of the options."""
        return run_of(Call.of_words(self.options.split(), "train"), training=self.training).run.workload()


_R50 = "--dataset imagenet --model resnet --model-size 50"
_B0 = (
    "--dataset imagenet --model efficientnet --model-size B0 --shards 4 --pipeline --pipeline-schedule Grouped "
    "--enable-recomputation --optimiser RMSprop --precision 16.32"
)
_INFERENCE = "--dataset imagenet --batch-norm --precision 16.16"
_TWO_IPUS = "--config mk2_efficientnet_b4_g16_16ipus --num-io-tiles 32 --prefetch-depth 3"
RAN = (
    Fact("B4 G16 on two IPUs", "Mk2", _TWO_IPUS),
    # the readme of SDK 1.3
    Fact("ResNet-50 on one IPU", "Mk1", f"{_R50} --micro-batch-size 1 --available-memory-proportion 0.1"),
    Fact("ResNet-50 on two IPUs", "Mk1", f"{_R50} --micro-batch-size 2 --enable-recomputation --shards 2 --pipeline "
         "--gradient-accumulation-count 256 --pipeline-splits b3/1/relu --available-memory-proportion 0.1"),
    Fact("ResNet-50 on eight IPUs", "Mk1", f"{_R50} --micro-batch-size 2 --enable-recomputation --shards 2 --pipeline "
         "--gradient-accumulation-count 128 --pipeline-splits b3/0/relu --pipeline-schedule Grouped --replicas 4 "
         "--available-memory-proportion 0.4"),
    Fact("ResNet-50 on sixteen IPUs", "Mk1", f"{_R50} --micro-batch-size 4 --enable-recomputation --shards 4 --pipeline "
         "--gradient-accumulation-count 64 --pipeline-splits b1/2/relu b2/3/relu b3/5/relu --replicas 4"),
    Fact("B0 on four IPUs", "Mk1", f"{_B0} --micro-batch-size 4 --gradient-accumulation-count 128 "
         "--pipeline-splits block2b block4a block6a"),
    Fact("B0 G16 on four IPUs", "Mk1", f"{_B0} --micro-batch-size 8 --gradient-accumulation-count 64 "
         "--pipeline-splits block2a/SE block4a block5c --group-dim 16 --expand-ratio 4 --groups 4"),
    # the largest micro-batches of published inferences
    Fact("ResNet-50 inference, batch 80", "Mk2", f"{_INFERENCE} --model resnet --model-size 50 --micro-batch-size 80 "
         "--fused-preprocessing", training=False),
    Fact("ResNet-50 inference, batch 90", "Mk2", f"{_INFERENCE} --model resnet --model-size 50 --micro-batch-size 90 "
         "--fused-preprocessing --synthetic-data", training=False),
    Fact("ResNeXt-101 inference, batch 16", "Mk2", f"{_INFERENCE} --model resnext --model-size 101 --micro-batch-size 16",
         training=False),
    Fact("B0 inference, batch 42", "Mk2", f"{_INFERENCE} --model efficientnet --model-size B0 --micro-batch-size 42",
         training=False),
    Fact("B4 inference, batch 5", "Mk2", f"{_INFERENCE} --model efficientnet --model-size B4 --micro-batch-size 5",
         training=False),
)  # fmt: skip
# An article names three techniques that B4 needed to fit on two IPUs. Without any of them, it did not fit.
TECHNIQUES = {
    "FP32 weights": "--precision 16.32",
    "micro-batch 4": "--micro-batch-size 4",
    "G1": "--group-dim 1 --expand-ratio 6",
}
FAILED = (
    *(Fact(f"B4 on two IPUs, {name}", "Mk2", f"{_TWO_IPUS} {words}", fitted=False) for name, words in TECHNIQUES.items()),
    Fact("ResNet-50 on one IPU, micro-batch 2", "Mk1", f"{_R50} --micro-batch-size 2 --available-memory-proportion 0.1",
         fitted=False),
)  # fmt: skip
_NOT_RUN = ("_base", "_modification", "_high_throughput")  # blocks with these endings are merged into others.


def configurations() -> Iterator[Fact]:
    """Yield a fact for each published configuration, with the values of each release."""
    file = ConfigFile(DEFAULT_CONFIG_PATH)
    published = {*file.spans(), *(name for name in file.names if "_16IPU_" in name)}
    for name in file.names:
        plain = split_name(name)[0]
        if plain in published and not plain.endswith(_NOT_RUN):
            yield Fact(name, "Mk1" if name.startswith("mk1") else "Mk2", f"--config {name}")


def facts() -> tuple[Fact, ...]:
    """Return all facts."""
    return (*configurations(), *RAN, *FAILED)


def ipu_named(name: str) -> Device:
    """Return the kind of IPU with a name."""
    return next(system.device for system in systems.SYSTEMS.values() if system.device.name == name)


@dataclass(frozen=True)
class Held:
    """A fact with what its IPUs hold."""

    fact: Fact
    sizes: tuple[IpuSizes, ...]
    capacity: int

    @classmethod
    def of(cls, fact: Fact) -> Held:
        """Return a fact with the sizes that its workload needs."""
        ipu = ipu_named(fact.ipu)
        return cls(fact, memory.sizes(fact.workload, ipu), ipu.memory)

    def room(self, constants: MemoryConstants) -> float:
        """Return the free bytes of the fullest IPU."""
        return self.capacity - max(each.memory(constants).total for each in self.sizes)

    def rooms(self, sets: np.ndarray) -> np.ndarray:
        """Return the free memory as a fraction of the IPU's memory, for each row of constants."""
        return 1 - np.max([_totals(each, sets) for each in self.sizes], axis=0) / self.capacity

    def other_cut(self, constants: MemoryConstants) -> float:
        """Return the most free bytes with two stages, wherever the network is cut."""
        work, ipu = self.fact.workload, ipu_named(self.fact.ipu)
        names = work.network.segments
        cut = [restaged(work, (names[:k], names[k:])) for k in range(1, len(names))]
        fullest = (max(each.total for each in memory.of_ipus(moved, ipu, constants)) for moved in cut)
        return self.capacity - min(fullest)


def held(chosen: Sequence[Fact]) -> list[Held]:
    """Return the facts with their sizes. Facts with equal sizes appear once."""
    unique = {(each.sizes, each.capacity, each.fact.fitted): each for each in map(Held.of, reversed(chosen))}
    return list(reversed(unique.values()))


def _totals(sizes: IpuSizes, sets: np.ndarray) -> np.ndarray:
    code, code_always, uneven, temporaries = sets.T
    peak = np.max(
        [uneven * (m.waiting + m.active) + np.minimum(m.limit, temporaries * m.product) for m in sizes.moments], axis=0
    )
    kept = uneven * (sizes.weights + sizes.optimiser_state + sizes.gradients) + sizes.images
    return kept + peak + sizes.tiles * (code_always + code * sizes.launches)


def fit(known: Sequence[Held]) -> tuple[MemoryConstants, tuple[MemoryConstants, ...], float]:
    """Return the constants with the largest smallest margin, sets of constants that span all sets that agree with all facts,
    and the margin."""
    draws = np.random.default_rng(1)
    low, high = np.array(list(MEMORY_BOUNDS.values())).T
    signs = np.array([1 if each.fact.fitted else -1 for each in known])
    sets = low * (high / low) ** draws.random((SAMPLES, len(low)))
    tried, margins, width = [], [], 0.2
    for _ in range(ROUNDS):
        tried.append(sets)
        margins.append(np.min([sign * each.rooms(sets) for sign, each in zip(signs, known)], axis=0))
        best = np.concatenate(tried)[np.concatenate(margins).argmax()]
        sets = np.clip(best * np.exp(width * draws.standard_normal((SAMPLES // 2, len(low)))), low, high)
        width /= 1.6
    every, margin = np.concatenate(tried), np.concatenate(margins)
    return _constants(every[margin.argmax()]), _spanning(known, every[margin >= 0]), float(margin.max())


def _spanning(known: Sequence[Held], sets: np.ndarray) -> tuple[MemoryConstants, ...]:
    """Return the few sets whose predictions for the facts span most of the range of all sets."""
    if not len(sets):
        return ()
    rooms = np.array([each.rooms(sets) for each in known])
    ranges = np.maximum(np.ptp(rooms, axis=1, keepdims=True), 1e-9)
    lowest = highest = rooms[:, :1]
    chosen = [0]
    for _ in range(AGREEING - 1):
        spans = (np.maximum(highest, rooms) - np.minimum(lowest, rooms)) / ranges
        chosen.append(int(spans.sum(axis=0).argmax()))
        lowest, highest = np.minimum(lowest, rooms[:, chosen[-1:]]), np.maximum(highest, rooms[:, chosen[-1:]])
    return tuple(_constants(sets[k]) for k in chosen)


def _constants(values: np.ndarray) -> MemoryConstants:
    return MemoryConstants(**{name: float(f"{value:.4g}") for name, value in zip(MEMORY_BOUNDS, values)})


def report(known: Sequence[Held], constants: MemoryConstants, agreeing: Sequence[MemoryConstants]) -> str:
    """Return the constants, the facts that bound them, and what another cut would change."""
    lines = [f"{name:12s} {getattr(constants, name):10.4g}  ({MEMORY_BOUNDS[name][0]:g} to {MEMORY_BOUNDS[name][1]:g}; "
             f"{min(getattr(each, name) for each in agreeing):.4g} to {max(getattr(each, name) for each in agreeing):.4g} "
             "agree with all facts)" for name in MEMORY_BOUNDS]  # fmt: skip
    failed = sum(not each.fact.fitted for each in known)
    lines += ["", f"{len(known)} facts; the {failed} that did not fit, and the tightest others, in MiB:"]
    lines.append(f"{'':44s} {'IPU':4s} {'fitted':6s} {'free':>5s} {'range':>12s}")
    tightest = sorted(known, key=lambda each: (each.fact.fitted, each.room(constants)))
    for each in tightest[:16]:
        rooms = [each.room(other) / MIB for other in (constants, *agreeing)]
        lines.append(f"{each.fact.name:44s} {each.fact.ipu:4s} {'yes' if each.fact.fitted else 'no':6s} {rooms[0]:5.0f} "
                     f"{f'{min(rooms):.0f} to {max(rooms):.0f}':>12s}")  # fmt: skip
    lines.append("")
    for each in known:
        if not each.fact.fitted and len(each.sizes) == 2:
            room = each.other_cut(constants) / MIB
            lines.append(f"{each.fact.name}, at the best cut: {room:.0f} MiB free")
    return "\n".join(lines)
