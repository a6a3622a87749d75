// Rounds the results of an operation to a format, which attributes of the operation define.

#ifndef EMULATOR_NATIVE_RESULTS_H_
#define EMULATOR_NATIVE_RESULTS_H_

#include <cstring>
#include <string>
#include <vector>

#include "emulator/native/blocks.h"
#include "emulator/native/grid.h"

namespace native {

constexpr int64_t kLeast = -126, kMost = 104;  // FP32 can round numbers with these exponents
constexpr char kRoundings[] = "rounding: {'none', 'nearest', 'random'} = 'none'", kFractionBits[] = "fraction_bits: int = 10",
               kLeastExponent[] = "least_exponent: int = -14", kLargest[] = "largest: float = 65504.0",
               kBeyond[] = "beyond: float = 0.0", kKinds[] = "kind: {'narrow', 'unsigned zero', 'shortened'} = 'narrow'";

// The attributes and the input of an operation that define how its results are rounded.
struct RoundingRules {
  template <typename Context>
  absl::Status read(Context* context) {
    tensorflow::int64 fraction_bits, least_exponent;
    std::string name;
    TF_RETURN_IF_ERROR(read_all(context, "rounding", &rounding, "count", &count, "kind", &name, "fraction_bits", &fraction_bits,
                                "least_exponent", &least_exponent, "largest", &format.largest, "beyond", &format.beyond));
    if (count != (rounding == "random")) {
      return InvalidArgument("random rounding needs one tensor of noise, other roundings none; the number is ", count);
    }
    if (!(fraction_bits >= 1 && fraction_bits < kFraction && format.largest > 0 && std::isfinite(format.largest))) {
      return InvalidArgument("a format needs 1 to 22 fraction bits and a finite largest number, not ", fraction_bits, " and ", format.largest);
    }
    kind = name == "shortened" ? Kind::kShortened : Kind::kNarrow;
    const int64_t top = static_cast<int64_t>(as_bits(format.largest) >> kFraction) - 127;  // exponent of the largest number
    const bool has_room = least_exponent <= top && least_exponent >= kLeast + fraction_bits && top <= kMost;
    if (kind == Kind::kNarrow && !has_room) {
      return InvalidArgument("FP32 cannot emulate a format from 2^", least_exponent, " to 2^", top, " with ", fraction_bits, " fraction bits");
    }
    format.dropped = kFraction - static_cast<int32_t>(fraction_bits);
    format.has_negative_zero = name != "unsigned zero";
    if (kind == Kind::kNarrow) format.smallest_exponent = (127 + static_cast<int32_t>(least_exponent)) << kFraction;
    format.beyond_exponent = (as_bits(format.largest) & kInfinity) + (1 << kFraction);
    return absl::OkStatus();
  }

  // Requires one number of noise for each sample, if the rounding is random. `input` is the index of the input with the noise.
  void check(Shapes* shapes, int input) const {
    if (count) shapes->count(input, (*shapes)['n']);
  }

  // Returns the noise of each sample. The roundings have the salts from `salt` on.
  std::vector<Noise> noise(OpKernelContext* context, int input, int64_t batch, uint64_t salt = 0) const {
    std::vector<Noise> noise(batch, Noise{format});
    for (int64_t sample = 0; sample < batch && count; ++sample) {
      const uint64_t own = context->input(input).flat<tensorflow::uint64>()(sample);
      for (int k = 0; k < kSalts; ++k) noise[sample].words[k] = word_of(salt + k, own);
    }
    return noise;
  }

  // Calls `work` with a null pointer of the type that rounds, so that the work is compiled for this type.
  template <typename Work>
  auto with_grid(Work work) const {
    const bool random = rounding == "random";
    if (rounding == "none") return work(static_cast<Exact*>(nullptr));
    if (kind == Kind::kNarrow && random) return work(static_cast<Grid<Kind::kNarrow, true>*>(nullptr));
    if (kind == Kind::kNarrow) return work(static_cast<Grid<Kind::kNarrow, false>*>(nullptr));
    if (random) return work(static_cast<Grid<Kind::kShortened, true>*>(nullptr));
    return work(static_cast<Grid<Kind::kShortened, false>*>(nullptr));
  }

  std::string rounding;
  Kind kind = Kind::kNarrow;
  Format format;
  int count = 0;
};

// Rounds numbers of a sample. y may be the same array as x.
template <typename Grid>
void round_all(const float* x, int64_t size, const Noise& noise, uint32_t place, float* y) {
  if constexpr (!Grid::kRounds) {
    if (x != y) std::memcpy(y, x, size * sizeof(float));
    return;
  }
  const Grid grid(noise);
#pragma GCC ivdep
  for (int32_t k = 0; k < static_cast<int32_t>(size); ++k) y[k] = grid(x[k], 0, place + k);
  if (noise.format.has_negative_zero) return;
  for (int64_t k = 0; k < size; ++k) y[k] += 0.0f;  // this changes only a negative zero
}

// How the results of an operation are rounded, and the noise of each sample.
struct Results {
  // Rounds numbers of a sample. `place` is the index of the first number in the sample.
  void round(const float* x, int64_t size, int64_t sample, uint32_t place, float* y) const {
    function(x, size, noise[sample], place, y);
  }

  decltype(&round_all<Exact>) function = &round_all<Exact>;
  std::vector<Noise> noise;
};

// The rounding of an operation with one rounding, whose random numbers depend on the attribute `salt`.
struct ResultRounding : RoundingRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(RoundingRules::read(context));
    return context->GetAttr("salt", &salt);
  }

  Results results(OpKernelContext* context, int input, int64_t batch) const {
    const auto function = with_grid([](auto* grid) { return &round_all<std::remove_pointer_t<decltype(grid)>>; });
    return {function, noise(context, input, batch, salt)};
  }

  tensorflow::int64 salt = 0;
};

}  // namespace native

#endif  // EMULATOR_NATIVE_RESULTS_H_
