"""Floating-point formats. A table has the common formats; a name such as `e4m3fnuz` defines any other one.

The name gives the exponent bits (e), the fraction bits (m), the exponent bias (b) and the special values, as in ml_dtypes:

* e5m2 is like IEEE 754: the top exponent means infinity and NaN, and the default bias is 2^(e-1) - 1.
* e4m3fn has no infinity, and only the top code is NaN. Formats of at most 6 bits (OCP's MX formats) have no NaN either.
* e4m3fnuz has no infinity and no -0. The code of -0 means NaN, and the default bias is 2^(e-1).
* e4m3b11fnuz has the exponent bias 11. To increase the bias by one halves every number of the format.

Operands of products may also have a block format: a row of BLOCKS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

IEEE, FINITE, UNSIGNED_ZERO = "", "fn", "fnuz"  # the end of a format's name: special values
EXPONENT_BITS, FRACTION_BITS = (2, 8), (1, 22)
LEAST, MOST = -126, 104  # FP32 holds numbers from 2^-126 to 2^104 with room for rounding.
_NAME = re.compile(r"(?:float[0-9]{1,2}_)?e([0-9]{1,2})m([0-9]{1,2})(?:b(-?[0-9]{1,4}))?(fnuz|fn)?")


class FormatError(ValueError):
    """The number format does not exist or is not supported."""


class _Fields(NamedTuple):
    name: str
    exponent_bits: int
    fraction_bits: int
    bias: int
    specials: str


class Format(_Fields):
    """A floating-point format: exponent bits, fraction bits, exponent bias and special values (IEEE, FINITE, UNSIGNED_ZERO).

    Python floats hold all its limits exactly.
    """

    @property
    def bits(self) -> int:
        """The number of bits, including the sign."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bytes(self) -> int:
        """The number of bytes that a number takes in memory."""
        return 1 if self.bits <= 8 else 2 if self.bits <= 16 else 4

    @property
    def least_exponent(self) -> int:
        """The exponent of the smallest normal number and of the subnormal numbers."""
        return 1 - self.bias

    @property
    def top_exponent(self) -> int:
        """The exponent of the largest number."""
        return 2**self.exponent_bits - (2 if self.specials == IEEE else 1) - self.bias

    @property
    def smallest(self) -> float:
        """The smallest number above 0, which is subnormal."""
        return 2.0 ** (self.least_exponent - self.fraction_bits)

    @property
    def has_nan(self) -> bool:
        """True if the format has NaN."""
        return self.specials != FINITE or self.bits > 6

    @cached_property
    def largest(self) -> float:
        """The largest number."""
        taken = 1 if self.specials == FINITE and self.has_nan else 0  # NaN takes the top code.
        return 2.0**self.top_exponent * (2 - (1 + taken) * 2.0**-self.fraction_bits)

    @cached_property
    def overflow(self) -> float:
        """The smallest positive number that overflows when rounded to nearest; infinity for FP32."""
        if self.exponent_bits == 8 and self.fraction_bits == 23:
            return math.inf
        return self.largest + 2.0 ** (self.top_exponent - self.fraction_bits - 1)

    @property
    def octaves(self) -> float:
        """The binary logarithm of the ratio of the largest to the smallest number."""
        return math.log2(self.largest / self.smallest)

    @property
    def beyond(self) -> float:
        """The absolute value that replaces an overflow. FP16 (as on the IPU) and formats without infinity use NaN."""
        if not self.has_nan:
            return self.largest
        return math.inf if self.specials == IEEE and self != FP16 else math.nan

    @property
    def has_fp32_exponents(self) -> bool:
        """True if the format is FP32 with a shorter fraction, like BF16."""
        return self.exponent_bits == 8

    def contains(self, other: Format) -> bool:
        """Return whether this format represents every number of the format `other`."""
        return (
            self.fraction_bits >= other.fraction_bits
            and self.least_exponent - self.fraction_bits <= other.least_exponent - other.fraction_bits
            and self.largest >= other.largest
        )

    def with_bias(self, bias: int | None) -> Format:
        """Return the format with another exponent bias. Raise FormatError if FP32 cannot represent its numbers."""
        if bias is None or bias == self.bias:
            return self
        return _checked(self.exponent_bits, self.fraction_bits, bias, self.specials)

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Return `values` in the dtype that checkpoints use for the format. For some 8-bit formats this is a dtype of
        ml_dtypes; otherwise `values` keep their dtype. `values` must be numbers of the format."""
        if self.name not in TENSORS_OF_8_BITS:
            return values
        import ml_dtypes  # TensorFlow installs ml_dtypes.

        return values.astype(getattr(ml_dtypes, f"float8_{self.name}"))

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Return `values` as float32, rounded to the nearest numbers of the format, ties to even."""
        import numpy as np

        with np.errstate(invalid="ignore"):  # `values` may have a signalling NaN.
            wide = np.asarray(values, np.float64)
        exponents = np.maximum(np.frexp(wide)[1] - 1, self.least_exponent)
        steps = np.exp2(exponents - self.fraction_bits, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            nearest = np.where(np.isfinite(wide), np.rint(wide / steps) * steps, wide)
            nearest = np.where(np.abs(nearest) > self.largest, np.copysign(self.beyond, nearest), nearest)
        return (nearest + 0.0 if self.specials == UNSIGNED_ZERO else nearest).astype(np.float32)


class BlockFormat(NamedTuple):
    """A format in which the numbers of a block share a scale: a number is an element times the scale. Only operands of
    products have such formats. Overflow gives the element's largest number.

    * `scale` is the format of scales. None means E8M0: the powers of two from 2^-127 to 2^127, and NaN.
    * `tensor_scale` means that all numbers of a tensor are multiplied by one more scale, in FP32.
    """

    name: str
    element: Format
    size: int  # the numbers of a block
    scale: Format | None = None
    tensor_scale: bool = False

    @property
    def octaves(self) -> float:
        """The binary logarithm of the ratio of the largest to the smallest number of a block."""
        return self.element.octaves

    @property
    def largest(self) -> float:
        """The largest number: with their scales, elements cover FP32."""
        return FP32.largest

    def contains(self, other: Format) -> bool:
        """Return False: which numbers the format has depends on the largest number of each block."""
        return False

    def with_bias(self, bias: int | None) -> BlockFormat:
        """Return the format. Raise FormatError for a bias."""
        if bias is None:
            return self
        raise FormatError("has no bias, because its blocks have scales; leave the option out")


FP32 = Format("FP32", 8, 23, 127, IEEE)  # the emulator computes in FP32, so it never rounds to FP32.
FP16 = Format("FP16", 5, 10, 15, IEEE)
BF16 = Format("BF16", 8, 7, 127, IEEE)
E4M3FNUZ, E5M2FNUZ = Format("e4m3fnuz", 4, 3, 8, UNSIGNED_ZERO), Format("e5m2fnuz", 5, 2, 16, UNSIGNED_ZERO)
E4M3FN, E5M2 = Format("e4m3fn", 4, 3, 7, FINITE), Format("e5m2", 5, 2, 15, IEEE)
TABLE = (FP32, FP16, BF16, E4M3FNUZ, E5M2FNUZ, E4M3FN, E5M2)
_BY_BITS = {each[1:]: each for each in TABLE}
_BY_NAME = {each.name.lower(): each for each in TABLE}
_OTHER_NAMES = {"float32": FP32, "float16": FP16, "half": FP16, "bfloat16": BF16}
NAMES = tuple(_BY_NAME)
# TensorFlow has tensors in these 8-bit formats, but no variables.
TENSORS_OF_8_BITS = ("e5m2", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2fnuz")
E2M1FN = Format("e2m1fn", 2, 1, 1, FINITE)
_BLOCK_TABLE = (
    # OCP Microscaling Formats (MX) Specification 1.0
    BlockFormat("mxfp8_e4m3", E4M3FN, 32),
    BlockFormat("mxfp8_e5m2", E5M2, 32),
    BlockFormat("mxfp6_e3m2", Format("e3m2fn", 3, 2, 3, FINITE), 32),
    BlockFormat("mxfp6_e2m3", Format("e2m3fn", 2, 3, 1, FINITE), 32),
    BlockFormat("mxfp4", E2M1FN, 32),
    # NVIDIA, Pretraining Large Language Models with NVFP4 (arXiv 2509.25149)
    BlockFormat("nvfp4", E2M1FN, 16, E4M3FN, tensor_scale=True),
)
BLOCKS = {each.name: each for each in _BLOCK_TABLE}
OPERAND_NAMES = (*NAMES, *BLOCKS)


def storage(number_format: Format) -> str:
    """Return the name of the narrowest dtype of tensors between layers that has all numbers of the format."""
    narrow = {"float16": FP16, "bfloat16": BF16}
    return next((name for name, each in narrow.items() if each.contains(number_format)), "float32")


def storage_bytes(number_format: Format) -> int:
    """Return the bytes of a number in a tensor between layers: 2 if FP16 or BF16 has all numbers of the format, else 4."""
    return 2 if FP16.contains(number_format) or BF16.contains(number_format) else FP32.bytes


def by_name(text: str) -> Format:
    """Return the format with a name: a name of TABLE, a name of ml_dtypes, or `e<bits>m<bits>[b<bias>][fn|fnuz]`.

    Raise FormatError for any other name, and for a format whose numbers FP32 cannot represent.
    """
    word = text.lower()
    known = _BY_NAME.get(word) or _OTHER_NAMES.get(word)
    if known:
        return known
    if word in BLOCKS:
        raise FormatError("is a block format, and only operands of products have these; give the name of another format")
    return _by_bits(word, NAMES)


def operand_by_name(text: str) -> Format | BlockFormat:
    """Return the format of operands with a name: a name of BLOCKS, or a name for `by_name`. Raise FormatError likewise."""
    word = text.lower()
    known = BLOCKS.get(word) or _BY_NAME.get(word) or _OTHER_NAMES.get(word)
    return known or _by_bits(word, OPERAND_NAMES)


def _by_bits(word: str, names: Sequence[str]) -> Format:
    parts = _NAME.fullmatch(word)
    if parts is None:
        raise FormatError(f"is not {', '.join(names)} or a name made of bits and bias such as e4m3b11fnuz")
    exponent_bits, fraction_bits, specials = int(parts[1]), int(parts[2]), parts[4] or IEEE
    bias = int(parts[3]) if parts[3] else _usual_bias(exponent_bits, specials)
    return _checked(exponent_bits, fraction_bits, bias, specials)


def _usual_bias(exponent_bits: int, specials: str) -> int:
    return 2 ** max(exponent_bits - 1, 0) - (specials != UNSIGNED_ZERO)


def _checked(exponent_bits: int, fraction_bits: int, bias: int, specials: str) -> Format:
    for what, bits, (least, most) in (
        ("exponent", exponent_bits, EXPONENT_BITS),
        ("fraction", fraction_bits, FRACTION_BITS),
    ):
        if not least <= bits <= most and (exponent_bits, fraction_bits) != (8, 23):
            raise FormatError(f"has {bits or 'no'} {what} bits; {least} to {most} are supported")
    bits = exponent_bits, fraction_bits, bias, specials
    if bits in _BY_BITS:
        return _BY_BITS[bits]
    usual = bias == _usual_bias(exponent_bits, specials)
    own = Format(f"e{exponent_bits}m{fraction_bits}{'' if usual else f'b{bias}'}{specials}", *bits)
    as_fp32 = exponent_bits == 8 and specials == IEEE and usual
    if not as_fp32 and not (exponent_bits < 8 and own.least_exponent - fraction_bits >= LEAST and own.top_exponent <= MOST):
        raise FormatError(
            f"with bias {bias} has numbers from 2^{own.least_exponent - fraction_bits} to 2^{own.top_exponent}; FP32 can "
            f"hold 2^{LEAST} to 2^{MOST}{_room(exponent_bits, fraction_bits, specials)}"
        )
    return own


def _room(exponent_bits: int, fraction_bits: int, specials: str) -> str:
    """Return the allowed biases as the end of an error message."""
    if exponent_bits == 8:
        return "; with 8 exponent bits, only bias 127 is allowed"
    most = 1 - LEAST - fraction_bits
    least = 2**exponent_bits - (2 if specials == IEEE else 1) - MOST
    return f"; biases {least} to {most} are allowed"
