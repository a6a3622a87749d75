"""What is kept in half precision, and how results get there. No TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.plan.options import DeviceOptions

OFF, UPDATE, ALL = "off", "update", "all"  # where rounding is stochastic
NANS, EXCEPTIONS = "nans", "exceptions"  # what ends a run at the first result that is not finite


@dataclass(frozen=True)
class Precision:
    """`half`: what layers compute and hand on, and the gradients' accumulators; `half_master`: the weights that updates
    move, and their slots. `fp32_copy`: a slot of FP32 weights beside those in half, which the update moves instead.
    `checks`: "" for none; with EXCEPTIONS overflow ends the run too where it would saturate."""

    half: bool = False
    half_master: bool = False
    stochastic: str = UPDATE
    saturate: bool = False
    fp32_copy: bool = False
    checks: str = ""
    half_accumulators: bool = True
    to_half: tuple[str, ...] = ()  # weights whose name contains one of these are kept in half whatever `half_master` says
    to_single: tuple[str, ...] = ()  # or in FP32

    @classmethod
    def of(cls, options: DeviceOptions, fp32_copy: bool = False) -> Precision:
        """As the device's options ask for it."""
        return named(
            options.precision,
            stochastic={"OFF": OFF, "all": ALL}.get(options.stochastic_rounding, UPDATE),
            saturate=options.saturate_on_overflow,
            fp32_copy=fp32_copy,
            checks=EXCEPTIONS if options.fp_exceptions else NANS if options.analyse_nans else "",
            to_half=options.force_weight_to_fp16,
            to_single=options.force_weight_to_fp32,
            half_accumulators=not options.fp32_accumulators,
        )

    def keeps_half(self, name: str) -> bool:
        """Whether the weights of that name, and their slots, are kept in half."""
        if any(part in name for part in self.to_single):
            return False
        return self.half_master or any(part in name for part in self.to_half)

    @property
    def name(self) -> str:
        """compute.master, as `--precision` has it."""
        return f"{16 if self.half else 32}.{16 if self.half_master else 32}"

    @property
    def label(self) -> str:
        """The part of a run's name: _noSR where stochastic rounding is switched off, _SR where it is everywhere."""
        return self.name + {OFF: "_noSR", ALL: "_SR" if self.half else ""}.get(self.stochastic, "")

    def __str__(self) -> str:
        stops = {NANS: "stops at the first NaN", EXCEPTIONS: "stops at floating-point exceptions"}
        forced = (("FP16", self.to_half), ("FP32", self.to_single))
        rest = [f"weights in {kind}: {' '.join(names)}" for kind, names in forced if names]
        rest += [stops[self.checks]] if self.checks else []
        if not self.half:
            return f"{self.name} ({', '.join(rest)})" if rest else self.name
        where = {OFF: "rounding to nearest", UPDATE: "stochastic rounding of updates", ALL: "stochastic rounding everywhere"}
        words = [where[self.stochastic if self.half_master or self.stochastic == ALL else OFF]]
        words += ["overflow saturates"] * self.saturate
        words += ["FP32 copy of the weights"] * (self.fp32_copy and self.half_master)
        words += ["FP32 accumulators"] * (not self.half_accumulators) + rest
        return f"{self.name} ({', '.join(words)})"


SINGLE = Precision()


def named(name: str, **rest: object) -> Precision:
    """The precision of `--precision`."""
    compute, master = name.split(".")
    return Precision(half=compute == "16", half_master=master == "16", **rest)
