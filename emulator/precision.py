"""What is kept in half precision, and how results get there. No TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

OFF, UPDATE, ALL = "off", "update", "all"  # where rounding is stochastic


@dataclass(frozen=True)
class Precision:
    """`half`: what layers compute and hand on, and the gradients' accumulators; `half_master`: the weights that updates
    move, and their slots. `fp32_copy`: a slot of FP32 weights beside those in half, which the update moves instead."""

    half: bool = False
    half_master: bool = False
    stochastic: str = UPDATE
    saturate: bool = False
    fp32_copy: bool = False
    half_accumulators: bool = True

    @property
    def name(self) -> str:
        """compute.master, as `--precision` has it."""
        return f"{16 if self.half else 32}.{16 if self.half_master else 32}"

    def __str__(self) -> str:
        if not self.half:
            return self.name
        where = {OFF: "rounding to nearest", UPDATE: "stochastic rounding of updates", ALL: "stochastic rounding everywhere"}
        words = [where[self.stochastic if self.half_master or self.stochastic == ALL else OFF]]
        words += ["overflow saturates"] * self.saturate
        words += ["FP32 copy of the weights"] * (self.fp32_copy and self.half_master)
        words += ["FP32 accumulators"] * (not self.half_accumulators)
        return f"{self.name} ({', '.join(words)})"


SINGLE = Precision()


def named(name: str, **rest: object) -> Precision:
    """The precision of `--precision`."""
    compute, master = name.split(".")
    return Precision(half=compute == "16", half_master=master == "16", **rest)
