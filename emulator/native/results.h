// Rounds the results of an operation to a format, to nearest or at random.

#ifndef EMULATOR_NATIVE_RESULTS_H_
#define EMULATOR_NATIVE_RESULTS_H_

#include <cstring>
#include <string>
#include <vector>

#include "emulator/native/formats.h"

namespace native {

// y may be the same array as x.
template <Kind kind>
void round_nearest(const float* x, int64_t size, const Format& format, float* y) {
  const Format own = format;
#pragma GCC ivdep
  for (int64_t k = 0; k < size; ++k) y[k] = to_nearest<kind>(x[k], own);
}

template <Kind kind>
void round_at_random(const float* x, int64_t size, const Format& format, uint64_t word, uint32_t place, float* y) {
  const Format own = format;
  const uint32_t low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
#pragma GCC ivdep
  for (int32_t k = 0; k < static_cast<int32_t>(size); ++k) {
    y[k] = at_random<kind>(x[k], uniform_of(low, high, place + static_cast<uint32_t>(k)), own);
  }
}

// The functions that round to one kind of format.
struct RoundingFunctions {
  decltype(&round_nearest<Kind::kNarrow>) nearest;
  decltype(&round_at_random<Kind::kNarrow>) at_random;
};

template <Kind kind>
constexpr RoundingFunctions rounding_functions() {
  return {&round_nearest<kind>, &round_at_random<kind>};
}

inline RoundingFunctions rounding_functions(Kind kind) {
  return kind == Kind::kShortened ? rounding_functions<Kind::kShortened>()
         : kind == Kind::kNarrow  ? rounding_functions<Kind::kNarrow>()
                                  : rounding_functions<Kind::kUnsignedZero>();
}

constexpr char kRoundings[] = "rounding: {'none', 'nearest', 'random'} = 'none'";

// The attributes and the input of an operation that define how its results are rounded.
struct RoundingRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("rounding", &rounding));
    TF_RETURN_IF_ERROR(read_format(context, &format, &kind));
    TF_RETURN_IF_ERROR(context->GetAttr("count", &count));
    const bool fits = count == (rounding == "random");
    return fits ? absl::OkStatus() : InvalidArgument("random rounding needs one tensor of noise, other roundings none; the number is ", count);
  }

  // Requires one number of noise for each sample, if the rounding is random. `input` is the index of the input with the noise.
  void check(Shapes* shapes, int input) const {
    if (count) shapes->count(input, (*shapes)['n']);
  }

  std::string rounding;
  Kind kind = Kind::kNarrow;
  Format format;
  int count = 0;
};

// How the results of an operation are rounded. `words` has a random word for each sample if the rounding is random.
struct Results {
  // Rounds numbers of a sample. `place` is the index of the first number in the sample.
  void round(const float* x, int64_t size, int64_t sample, uint32_t place, float* y) const {
    if (!rounds) {
      std::memcpy(y, x, size * sizeof(float));
    } else if (words.empty()) {
      functions.nearest(x, size, format, y);
    } else {
      functions.at_random(x, size, format, words[sample], place, y);
    }
  }

  bool rounds;
  RoundingFunctions functions;
  Format format;
  std::vector<uint64_t> words;
};

// The rounding of an operation with one rounding, whose random numbers depend on the attribute `salt`.
struct ResultRounding : RoundingRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(RoundingRules::read(context));
    return context->GetAttr("salt", &salt);
  }

  Results results(OpKernelContext* context, int input, int64_t batch) const {
    Results results{rounding != "none", rounding_functions(kind), format, {}};
    for (int64_t sample = 0; sample < batch && count; ++sample) {
      results.words.push_back(word_of(salt, context->input(input).flat<tensorflow::uint64>()(sample)));
    }
    return results;
  }

  tensorflow::int64 salt = 0;
};

}  // namespace native

#endif  // EMULATOR_NATIVE_RESULTS_H_
