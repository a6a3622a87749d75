"""The number formats of a run: of what layers compute, of weights and slots, of sums. The casts are in
`emulator.layers.policy`, which has TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from emulator.plan.options import DeviceOptions
from Models._layers import Variable

OFF, UPDATE, ALL = "off", "update", "all"  # where rounding is stochastic
NANS, EXCEPTIONS = "nans", "exceptions"  # what ends a run at the first result that is not finite


class Format(NamedTuple):
    """A floating-point format. `overflow`: the least size that rounds to infinity."""

    name: str
    bytes: int
    largest: float
    overflow: float


FP16 = Format("FP16", 2, 65504.0, 65520.0)
FP32 = Format("FP32", 4, 2.0**128 - 2.0**104, math.inf)  # of the arithmetic itself: nothing is rounded to it
FORMATS = {"16": FP16, "32": FP32}  # by their names in `--precision`


@dataclass(frozen=True, kw_only=True)
class Precision:
    """`compute`: the format of what layers hand on, and of gradients; `master`: of the weights that updates move, and of
    their slots. `stochastic`: where rounding is at random. `checks`: "" for none; with EXCEPTIONS overflow ends the run too
    where it would saturate. The others are options, under their names."""

    compute: Format = FP32
    master: Format = FP32
    stochastic: str = UPDATE
    checks: str = ""
    saturate_on_overflow: bool = False
    offload_fp32_weight_copy: bool = False
    fp32_accumulators: bool = False
    force_weight_to_fp16: tuple[str, ...] = ()
    force_weight_to_fp32: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: DeviceOptions, offload_fp32_weight_copy: bool = False) -> Precision:
        """Return the precision that the device's options ask for."""
        return named(
            options.precision,
            stochastic={"OFF": OFF, "all": ALL}.get(options.stochastic_rounding, UPDATE),
            checks=EXCEPTIONS if options.fp_exceptions else NANS if options.analyse_nans else "",
            saturate_on_overflow=options.saturate_on_overflow,
            offload_fp32_weight_copy=offload_fp32_weight_copy,
            fp32_accumulators=options.fp32_accumulators,
            force_weight_to_fp16=options.force_weight_to_fp16,
            force_weight_to_fp32=options.force_weight_to_fp32,
        )

    @property
    def rounds_results(self) -> bool:
        """True if results and gradients are rounded to a narrower format than that of the arithmetic."""
        return self.compute != FP32

    @property
    def rounds_weights(self) -> bool:
        """True if weights and slots are rounded to a narrower format, unless a name is forced."""
        return self.master != FP32

    @property
    def accumulator(self) -> Format:
        """The format of the sums of gradients."""
        return FP32 if self.fp32_accumulators else self.compute

    def master_format(self, variable: Variable) -> Format:
        """Return the format of a trained variable's values as an update leaves them."""
        if any(part in variable.name for part in self.force_weight_to_fp32):
            return FP32
        return FP16 if any(part in variable.name for part in self.force_weight_to_fp16) else self.master

    def stored_format(self, variable: Variable) -> Format:
        """Return the format of a variable in memory and in checkpoints; moving statistics and proxies are FP32 always."""
        return self.master_format(variable) if variable.trainable and not variable.proxy else FP32

    def rounds_updates(self, variables: Iterable[Variable]) -> bool:
        """Return whether an update of any of the variables ends in a narrower format than that of the arithmetic: not where
        the weights that updates move, or copies of them, are FP32."""
        return any(v.trainable and self.master_format(v) != FP32 and not self.has_fp32_copy(v) for v in variables)

    def has_fp32_copy(self, variable: Variable) -> bool:
        """Return whether a slot holds the weight in FP32, which updates move in place of the narrower one."""
        return self.offload_fp32_weight_copy and self.stored_format(variable) != FP32

    def slot_format(self, variable: Variable) -> Format:
        """Return the format of a variable's slots, in memory and in checkpoints."""
        return FP32 if self.has_fp32_copy(variable) else self.stored_format(variable)

    @property
    def name(self) -> str:
        """compute.master, as `--precision` has it."""
        return ".".join(key for part in (self.compute, self.master) for key, each in FORMATS.items() if each == part)

    @property
    def label(self) -> str:
        """The part of a run's name: _noSR where stochastic rounding is switched off, _SR where it is everywhere."""
        return self.name + {OFF: "_noSR", ALL: "_SR" if self.rounds_results else ""}.get(self.stochastic, "")

    def summary(self, variables: Iterable[Variable]) -> str:
        """Formats and rounding in a few words, for a network of these variables."""
        updates = self.rounds_updates(variables)
        stops = {NANS: "stops at the first NaN", EXCEPTIONS: "stops at floating-point exceptions"}
        forced = (("FP16", self.force_weight_to_fp16), ("FP32", self.force_weight_to_fp32))
        rest = [f"weights in {kind}: {' '.join(names)}" for kind, names in forced if names]
        rest += [stops[self.checks]] if self.checks else []
        words = [self._rounding(updates)] * (updates or self.rounds_results)
        if self.rounds_results:
            words += ["overflow saturates"] * self.saturate_on_overflow
            words += ["FP32 copy of the weights"] * (self.offload_fp32_weight_copy and self.rounds_weights)
            words += ["FP32 accumulators"] * self.fp32_accumulators
        words += rest
        return f"{self.name} ({', '.join(words)})" if words else self.name

    def _rounding(self, updates: bool) -> str:
        """`updates`: whether they round."""
        if self.stochastic == ALL and self.rounds_results:
            return "stochastic rounding everywhere"
        return "stochastic rounding of updates" if updates and self.stochastic != OFF else "rounding to nearest"


SINGLE = Precision()


def named(name: str, **rest: object) -> Precision:
    """The precision of `--precision`."""
    compute, master = name.split(".")
    return Precision(compute=FORMATS[compute], master=FORMATS[master], **rest)
