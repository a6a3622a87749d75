// The attributes of operations that name the format which their results are rounded to.

#ifndef EMULATOR_NATIVE_FORMATS_H_
#define EMULATOR_NATIVE_FORMATS_H_

#include "emulator/native/blocks.h"
#include "emulator/native/grid.h"

namespace native {

constexpr char kFractionBits[] = "fraction_bits: int = 10", kLeastExponent[] = "least_exponent: int = -14",
               kLargest[] = "largest: float = 65504.0", kBeyond[] = "beyond: float = 0.0",
               kKinds[] = "kind: {'narrow', 'unsigned zero', 'shortened'} = 'narrow'";

// Sets the construction's status where an attribute is missing.
inline Format format_of(OpKernelConstruction* construction, Kind* kind) {
  Format format;
  tensorflow::int64 fraction_bits = 10, least_exponent = -14;
  std::string name;
  auto read = [&]() -> absl::Status {
    TF_RETURN_IF_ERROR(construction->GetAttr("fraction_bits", &fraction_bits));
    TF_RETURN_IF_ERROR(construction->GetAttr("least_exponent", &least_exponent));
    TF_RETURN_IF_ERROR(construction->GetAttr("largest", &format.largest));
    TF_RETURN_IF_ERROR(construction->GetAttr("beyond", &format.beyond));
    return construction->GetAttr("kind", &name);
  };
  construction->SetStatus(read());
  format.dropped = kFraction - static_cast<int32_t>(fraction_bits);
  format.smallest_exponent = (127 + static_cast<int32_t>(least_exponent)) << kFraction;
  format.beyond_exponent = (as_bits(format.largest) & kInfinity) + (1 << kFraction);
  *kind = name == "shortened" ? Kind::kShortened : name == "narrow" ? Kind::kNarrow : Kind::kUnsignedZero;
  return format;
}

}  // namespace native

#endif  // EMULATOR_NATIVE_FORMATS_H_
