// Attributes of operations that define the format of their results.

#ifndef EMULATOR_NATIVE_FORMATS_H_
#define EMULATOR_NATIVE_FORMATS_H_

#include "emulator/native/blocks.h"
#include "emulator/native/grid.h"

namespace native {

constexpr int64_t kLeast = -126, kMost = 104;  // FP32 can round numbers with these exponents
constexpr char kFractionBits[] = "fraction_bits: int = 10", kLeastExponent[] = "least_exponent: int = -14",
               kLargest[] = "largest: float = 65504.0", kBeyond[] = "beyond: float = 0.0",
               kKinds[] = "kind: {'narrow', 'unsigned zero', 'shortened'} = 'narrow'";

// Reads the format from an operation's attributes. `Context` is OpKernelConstruction or InferenceContext.
template <typename Context>
absl::Status read_format(Context* context, Format* to, Kind* kind) {
  Format& format = *to;
  tensorflow::int64 fraction_bits = 10, least_exponent = -14;
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("fraction_bits", &fraction_bits));
  TF_RETURN_IF_ERROR(context->GetAttr("least_exponent", &least_exponent));
  TF_RETURN_IF_ERROR(context->GetAttr("largest", &format.largest));
  TF_RETURN_IF_ERROR(context->GetAttr("beyond", &format.beyond));
  TF_RETURN_IF_ERROR(context->GetAttr("kind", &name));
  if (!(fraction_bits >= 1 && fraction_bits < kFraction && format.largest > 0 && std::isfinite(format.largest))) {
    return InvalidArgument("a format needs 1 to 22 fraction bits and a finite largest number, not ", fraction_bits, " and ", format.largest);
  }
  const int64_t top = static_cast<int64_t>(as_bits(format.largest) >> kFraction) - 127;  // exponent of the largest number
  const bool has_room = least_exponent <= top && least_exponent >= kLeast + fraction_bits && top <= kMost;
  if (name != "shortened" && !has_room) {
    return InvalidArgument("FP32 cannot emulate a format from 2^", least_exponent, " to 2^", top, " with ", fraction_bits, " fraction bits");
  }
  format.dropped = kFraction - static_cast<int32_t>(fraction_bits);
  if (name != "shortened") format.smallest_exponent = (127 + static_cast<int32_t>(least_exponent)) << kFraction;
  format.beyond_exponent = (as_bits(format.largest) & kInfinity) + (1 << kFraction);
  *kind = name == "shortened" ? Kind::kShortened : name == "narrow" ? Kind::kNarrow : Kind::kUnsignedZero;
  return absl::OkStatus();
}

}  // namespace native

#endif  // EMULATOR_NATIVE_FORMATS_H_
