"""The number formats of a run: for layer results, operands of products, weights, slots and gradient sums.

`emulator.plan.number_formats` defines the formats; `emulator.lowering.policy` casts tensors to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cnn_harness.emulator.plan import number_formats
from cnn_harness.emulator.plan.number_formats import (
    BF16,
    E4M3FNUZ,
    E5M2FNUZ,
    FP16,
    FP32,
    BlockFormat,
    Format,
    FormatError,
)
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.Models._layers import Variable

OFF, UPDATE, ALL = "off", "update", "all"  # nothing, updates or every result is rounded stochastically.
NANS, EXCEPTIONS = "nans", "exceptions"  # the run ends at a NaN or infinity, or at a floating-point exception.
MAXIMUM = "maximum"  # --format-scaling maximum scales each tensor by its largest value.
FIRST, LAST = "first", "last"  # --format-for names the network's first and last layer by these words.
OperandFormat = Format | BlockFormat


class Operands(NamedTuple):
    """The formats of the numbers that a convolution or matrix product multiplies. The forward pass multiplies weights by
    activations; the backward pass multiplies gradients by weights or activations. Sums are FP32, then rounded once."""

    weight: OperandFormat
    activation: OperandFormat
    gradient: OperandFormat

    @classmethod
    def all_in(cls, number_format: OperandFormat) -> Operands:
        """Return operands that all have the same format."""
        return cls(number_format, number_format, number_format)

    @property
    def has_blocks(self) -> bool:
        """True if an operand has a block format."""
        return any(isinstance(each, BlockFormat) for each in self)


ALL_FP32 = Operands.all_in(FP32)
FP8 = Operands(E4M3FNUZ, E4M3FNUZ, E5M2FNUZ)  # Noune et al. (arXiv 2206.02915) call these formats 1.4.3 and 1.5.2.


class _Named(NamedTuple):
    """The formats that a value of `--precision` means."""

    compute: Format
    operands: Operands
    master: Format


NAMED = {
    "16.16": _Named(FP16, Operands.all_in(FP16), FP16),
    "16.32": _Named(FP16, Operands.all_in(FP16), FP32),
    "32.32": _Named(FP32, ALL_FP32, FP32),
    "8.16": _Named(FP16, FP8, FP16),
    "8.32": _Named(FP16, FP8, FP32),
    "bf16.16": _Named(BF16, Operands.all_in(BF16), BF16),
    "bf16.32": _Named(BF16, Operands.all_in(BF16), FP32),
}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The number format of every kind of value in a run.

    * `name` is the value of `--precision`.
    * `compute` is the format of layer results and their gradients.
    * `operands` are the formats of the inputs of convolutions and matrix products.
    * `exceptions` has pairs (text in a kernel's name, format). The first match replaces `operands`.
    * `accumulator` is the format of sums of gradients.
    * `master` is the format of the weights that the optimiser updates.
    * `slot` is the format of optimiser slots; None means the format of the weights.
    * `stochastic` is OFF, UPDATE or ALL.
    * `checks` is NANS, EXCEPTIONS or "" (no checks). EXCEPTIONS also ends the run at an overflow that would saturate.
    * `scaled_kernels` names the kernels whose layers scale their formats by the largest values of the tensors.

    The other fields are options of the same name.
    """

    name: str = "32.32"
    compute: Format = FP32
    operands: Operands = ALL_FP32
    exceptions: tuple[tuple[str, OperandFormat], ...] = ()
    accumulator: Format = FP32
    master: Format = FP32
    slot: Format | None = None
    stochastic: str = UPDATE
    checks: str = ""
    saturate_on_overflow: bool = False
    offload_fp32_weight_copy: bool = False
    force_weight_to_fp16: tuple[str, ...] = ()
    force_weight_to_fp32: tuple[str, ...] = ()
    native_arithmetic: bool = False
    scaled_kernels: tuple[str, ...] = ()
    hadamard: bool = False

    @classmethod
    def of(cls, options: DeviceOptions, offload_fp32_weight_copy: bool = False, kernels: Sequence[str] = ()) -> Precision:
        """Return the precision for the device options. `kernels` has the names of the network's kernels in order.

        Raise FormatError for a bias that FP32 cannot represent.
        """
        usual = NAMED[options.precision]
        own = by_name(
            options.precision,
            stochastic={"OFF": OFF, "all": ALL}.get(options.stochastic_rounding, UPDATE),
            checks=EXCEPTIONS if options.fp_exceptions else NANS if options.analyse_nans else "",
            saturate_on_overflow=options.saturate_on_overflow,
            offload_fp32_weight_copy=offload_fp32_weight_copy,
            force_weight_to_fp16=options.force_weight_to_fp16,
            force_weight_to_fp32=options.force_weight_to_fp32,
            native_arithmetic=bool(options.native_arithmetic),
            hadamard=options.hadamard,
            operands=Operands(*(_operand(options, kind, getattr(usual.operands, kind)) for kind in Operands._fields)),
            exceptions=_exceptions(options.format_for or _ends(usual), kernels),
        )
        changed = {name: number_formats.by_name(text) for name, text in _state_formats(options).items() if text}
        scaled = options.format_scaling == MAXIMUM and own._rounds(Format)
        return replace(own, **changed, scaled_kernels=tuple(kernels) if scaled else ())

    @property
    def rounds_results(self) -> bool:
        """True if results and gradients are rounded to a narrower format than FP32."""
        return self.compute != FP32

    @property
    def rounds_operands(self) -> bool:
        """True if a convolution or matrix product may round its operands."""
        return self._rounds(Format, BlockFormat)

    def _rounds(self, *kinds: type) -> bool:
        """Return whether an operand may be rounded to a format of these kinds."""
        used = (*self.operands, *(each for _, each in self.exceptions))
        return any(isinstance(each, kinds) and not each.contains(self.compute) for each in used)

    @property
    def narrow_operands(self) -> tuple[str, ...]:
        """The names of the operands' formats with fewer than 16 bits."""
        used = dict.fromkeys((*self.operands, *(each for _, each in self.exceptions)))
        return tuple(each.name for each in used if isinstance(each, BlockFormat) or each.bits < FP16.bits)

    @property
    def may_rotate(self) -> bool:
        """True if the operands of a weights' gradient may have block formats, so that they can be transformed."""
        return any(
            isinstance(each.activation, BlockFormat) and isinstance(each.gradient, BlockFormat)
            for each in (self.operands, *(Operands.all_in(one) for _, one in self.exceptions))
        )

    @property
    def multiplies_bf16(self) -> bool:
        """True if all products are BF16 and are rounded to the nearest, so that the BF16 units of a processor fit."""
        formats = (self.compute, *self.operands, *(each for _, each in self.exceptions))
        return self.stochastic != ALL and all(each == BF16 for each in formats)

    def operands_of(self, kernel: str) -> Operands:
        """Return the operand formats of the layer with this kernel."""
        exception = next((each for part, each in self.exceptions if part in kernel), None)
        return Operands.all_in(exception) if exception else self.operands

    def follows(self, operand: OperandFormat, source: Format) -> bool:
        """Return whether an operand is scaled by the largest values of its tensor. `source` is the tensor's format; if the
        operand's format contains it, no scaling is needed. Block formats have their own scales."""
        return bool(self.scaled_kernels) and not (isinstance(operand, BlockFormat) or operand.contains(source))

    def gradients_of(self, kernel: str) -> tuple[Format, ...]:
        """Return the formats to which a layer rounds its incoming gradient, in order. Formats that are scaled are left
        out."""
        gradient = self.operands_of(kernel).gradient
        fixed = not (isinstance(gradient, BlockFormat) or self.follows(gradient, self.compute))
        return tuple(dict.fromkeys((self.compute, *[gradient] * fixed)))

    def weight_format(self, variable: Variable) -> OperandFormat:
        """Return the format in which the layer uses a trained variable."""
        return self.operands_of(variable.name).weight if is_kernel(variable.name) else self.compute

    def master_format(self, variable: Variable) -> Format:
        """Return the format to which an update rounds a trained variable. If updates change FP32 copies of narrow weights,
        variables of proxy norm are stored in FP32 and need no copy."""
        if any(part in variable.name for part in self.force_weight_to_fp32):
            return FP32
        if self.offload_fp32_weight_copy and variable.proxy:
            return FP32
        return FP16 if any(part in variable.name for part in self.force_weight_to_fp16) else self.master

    def stored_format(self, variable: Variable) -> Format:
        """Return the format of a variable in memory and in checkpoints. Moving statistics and the variables of proxy norm
        are always FP32."""
        return self.master_format(variable) if variable.trainable and not variable.proxy else FP32

    def rounds_updates(self, variables: Iterable[Variable]) -> bool:
        """Return whether an update rounds any of the variables or their slots. Weights are not rounded if they are FP32 or
        have an FP32 copy."""
        trained = [v for v in variables if v.trainable and not self.has_fp32_copy(v)]
        return any(self.master_format(v) != FP32 or self.slot_format(v) != FP32 for v in trained)

    def has_fp32_copy(self, variable: Variable) -> bool:
        """Return whether updates change an FP32 copy of the variable, which is stored in a slot."""
        return self.offload_fp32_weight_copy and self.stored_format(variable) != FP32

    def slot_format(self, variable: Variable) -> Format:
        """Return the format of a variable's optimiser slots in memory and in checkpoints."""
        if self.has_fp32_copy(variable) or variable.proxy:
            return FP32
        return self.slot or self.stored_format(variable)

    def bytes_of_slots(self, variable: Variable, slots: int) -> int:
        """Return the bytes of a variable's optimiser slots and of its FP32 copy, if any. `slots` is the number of slots."""
        return (slots + self.has_fp32_copy(variable)) * self.slot_format(variable).bytes * variable.elements

    @property
    def label(self) -> str:
        """The precision as it appears in a run's name. _noSR means no stochastic rounding; _SR means that all rounding is
        stochastic."""
        return self.name + {OFF: "_noSR", ALL: "_SR" if self.rounds_results else ""}.get(self.stochastic, "")

    def summary(self, variables: Collection[Variable]) -> str:
        """Return a short description of formats and rounding for a network with these variables."""
        updates, of, slot = self.rounds_updates(variables), self.operands, self.slot
        stops = {NANS: "stops at the first NaN", EXCEPTIONS: "stops at floating-point exceptions"}
        said = (
            (updates or self.rounds_results or self.rounds_operands, self._rounding(updates)),
            (self.rounds_operands and self.scaled_kernels, "formats scaled by the largest values"),
            (
                self.rounds_operands,
                f"products of {of.weight.name} weights, {of.activation.name} activations, {of.gradient.name} gradients",
            ),
            (self.hadamard and self.may_rotate, "Hadamard transform"),
            (self.rounds_results and self.saturate_on_overflow, "overflow saturates"),
            (self.rounds_results and self.native_arithmetic, "products in the processor's BF16"),
            (any(v.trainable and self.has_fp32_copy(v) for v in variables), "FP32 copy of the weights"),
            (self.accumulator != self.compute, f"{self.accumulator.name} accumulators"),
            (self.master != NAMED[self.name].master, f"{self.master.name} weights"),
            (slot, f"{slot and slot.name} slots"),
            (self.force_weight_to_fp16, f"weights in FP16: {' '.join(self.force_weight_to_fp16)}"),
            (self.force_weight_to_fp32, f"weights in FP32: {' '.join(self.force_weight_to_fp32)}"),
            (self.checks, stops.get(self.checks)),
        )
        words = [text for holds, text in said if holds]
        return f"{self.name} ({', '.join(words)})" if words else self.name

    def _rounding(self, updates: bool) -> str:
        if self.stochastic == ALL and (self.rounds_results or self.rounds_operands):
            return "stochastic rounding everywhere"
        return "stochastic rounding of updates" if updates and self.stochastic != OFF else "rounding to nearest"

    def table(self) -> list[str]:
        """Return the lines of a table with the format, range and rounding of each kind of tensor."""
        rows = [("tensors", "format", "smallest", "largest", "rounded"), *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        everywhere = "at random" if self.stochastic == ALL else "to nearest"
        updated = "to nearest" if self.stochastic == OFF else "at random"

        def row(what: str, number_format: OperandFormat, way: str = "") -> tuple[str, str, str, str, str]:
            if isinstance(number_format, BlockFormat):
                shown = "by block", "by block"
            else:
                shown = f"{number_format.smallest:.3g}", f"{number_format.largest:.5g}"
            return what, number_format.name, *shown, "" if number_format == FP32 else way

        of = self.operands
        slot = self.slot or self.master
        return [
            row("layer results and gradients", self.compute, everywhere),
            row("weights in products", of.weight, "to nearest"),
            row("activations in products", of.activation, everywhere),
            row("gradients in products", of.gradient, everywhere),
            *(row(f"all three in {part.rstrip('/')}", each, everywhere) for part, each in self.exceptions),
            row("sums of products", FP32),
            row("accumulated gradients", self.accumulator, everywhere),
            row("weights in updates", self.master, updated),
            row("slots of the optimiser", FP32 if self.offload_fp32_weight_copy and self.master != FP32 else slot, updated),
            row("statistics of norms", FP32),
        ]


def is_kernel(name: str) -> bool:
    """Return whether a variable is the kernel of a convolution or a dense layer."""
    return name.rpartition("/")[2] == "kernel"


def layer_of(kernel: str) -> str:
    """Return the path of the layer with this kernel, e.g. all/b1/0/1/conv."""
    return kernel.removesuffix("/kernel").removesuffix("/conv2d")


def _ends(usual: _Named) -> tuple[str, ...]:
    """Return the default of --format-for. With operands narrower than results, the first and last layer use the format of
    results, because they lose most accuracy in narrow formats and have few multiplications."""
    narrower = usual.operands != Operands.all_in(usual.compute)
    return tuple(f"{end}={usual.compute.name}" for end in (FIRST, LAST)) if narrower else ()


def _exceptions(words: Sequence[str], kernels: Sequence[str]) -> tuple[tuple[str, OperandFormat], ...]:
    """Return the values of --format-for as pairs (text in a kernel's name, format). Values that decide no kernel's format
    are left out."""
    ends = {FIRST: f"{layer_of(kernels[0])}/", LAST: f"{layer_of(kernels[-1])}/"} if kernels else {}
    named = (word.rpartition("=") for word in words)
    pairs = [(ends.get(part, part), number_formats.operand_by_name(text)) for part, _, text in named]
    deciding = {next((k for k, (part, _) in enumerate(pairs) if part in kernel), None) for kernel in kernels}
    return tuple(pair for k, pair in enumerate(pairs) if not kernels or k in deciding)


def _operand(options: DeviceOptions, kind: str, usual: OperandFormat) -> OperandFormat:
    """Return the format of one kind of operand from its options for format and bias. `usual` is the default format."""
    text, bias = getattr(options, f"{kind}_format"), getattr(options, f"{kind}_bias")
    own = number_formats.operand_by_name(text) if text else usual
    try:
        return own.with_bias(bias)
    except FormatError as error:
        raise FormatError(f"--{kind}-bias {bias}: {own.name} {error}") from None


def _state_formats(options: DeviceOptions) -> dict[str, str | None]:
    """Return the names of the formats for values that outlive a pass, by field of Precision. None means the default."""
    accumulator = "fp32" if options.fp32_accumulators else options.accumulator_format
    return {"accumulator": accumulator, "master": options.master_format, "slot": options.slot_format}


def by_name(name: str, **rest: object) -> Precision:
    """Return the precision that a value of `--precision` means."""
    usual = NAMED[name]
    own = Precision(
        name=name, compute=usual.compute, operands=usual.operands, accumulator=usual.compute, master=usual.master
    )
    return replace(own, **rest)


SINGLE = by_name("32.32")
