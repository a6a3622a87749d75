// Rounds FP32 to a narrower format, one number at a time, to nearest or at random.
//
// The results equal those of emulator/layers/rounding.py and base/draws.py in every bit, because both take the same steps in
// the same order. In FP32, every step is exact except the step that rounds. Instructions that convert to FP16 are not used,
// because they would change the bits of a NaN. They would not be faster, because memory is the bottleneck.

#ifndef EMULATOR_NATIVE_GRID_H_
#define EMULATOR_NATIVE_GRID_H_

#include <cmath>
#include <cstdint>

namespace native {

constexpr int32_t kFraction = 23;
constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7F800000u;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

inline float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }

// Kinds of formats. All numbers of a kNarrow format are normal numbers in FP32. kShortened is FP32 with a shorter fraction,
// such as BF16; its subnormal numbers are subnormal in FP32, too.
enum class Kind { kNarrow, kShortened };

// A number format. The exponents are stored as bits of an FP32 number.
struct Format {
  int32_t smallest_exponent = (127 - 14) << kFraction;  // smallest exponent of normal numbers
  int32_t beyond_exponent = (127 + 16) << kFraction;    // smallest exponent of numbers that overflow
  int32_t dropped = 13;                                 // FP32 fraction bits that the format lacks
  float largest = 65504.0f;
  float beyond = 0;  // numbers above `largest` become this number
  bool has_negative_zero = true;
};

inline int32_t exponent_of(uint32_t bits, const Format& format) {
  const int32_t exponent = bits & kInfinity;
  const int32_t normal = exponent < format.smallest_exponent ? format.smallest_exponent : exponent;
  return normal > format.beyond_exponent ? format.beyond_exponent : normal;
}

inline float finished(float y, const Format& format, uint32_t bits) {
  return as_float(as_bits(y > format.largest ? format.beyond : y) | (bits & kSign));
}

// Returns `rounded`, or `size` if it is a NaN.
inline float shortened(uint32_t size, uint32_t rounded) { return as_float(size > kInfinity ? size : rounded); }

template <Kind kind>
inline float to_nearest(float x, const Format& format) {
  const uint32_t bits = as_bits(x), size = bits & ~kSign;
  if constexpr (kind == Kind::kShortened) {
    const uint32_t unit = 1u << format.dropped, even = (size >> format.dropped) & 1u;
    return finished(shortened(size, (size + unit / 2 - 1 + even) & ~(unit - 1)), format, bits);
  }
  const float shifter = as_float(exponent_of(bits, format) + (format.dropped << kFraction));
  return finished((as_float(size) + shifter) - shifter, format, bits);
}

// Rounds x up or down at random. `uniform` is a random number in [0, 1).
template <Kind kind>
inline float at_random(float x, float uniform, const Format& format) {
  const uint32_t bits = as_bits(x), size = bits & ~kSign;
  if constexpr (kind == Kind::kShortened) {
    const uint32_t unit = 1u << format.dropped, rest = size & (unit - 1);
    const bool up = uniform * static_cast<float>(static_cast<int32_t>(unit)) < static_cast<float>(static_cast<int32_t>(rest));
    return finished(shortened(size, (size - rest) + (up ? unit : 0u)), format, bits);
  }
  const float step = as_float(exponent_of(bits, format) - ((kFraction - format.dropped) << kFraction));
  const float steps = as_float(size) / step;
  const float below = std::floor(steps);
  return finished((below + (uniform < steps - below ? 1.0f : 0.0f)) * step, format, bits);
}

// The same as bits(salt, noise) in base/draws.py.
inline uint64_t word_of(uint64_t salt, uint64_t noise) {
  uint64_t z = salt + kGolden * (noise + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The same as uniform_of_words in base/draws.py.
inline float uniform_of(uint32_t low, uint32_t high, uint32_t place) {
  uint32_t z = place * static_cast<uint32_t>(kGolden >> 32) + low;
  z = (z ^ (z >> 16)) * 0x21F0AAADu;
  z = (z ^ (z >> 15)) * 0x735A2D97u;
  z = z ^ (z >> 15) ^ high;
  z = (z ^ (z >> 16)) * 0x21F0AAADu;
  return static_cast<float>(static_cast<int32_t>((z ^ (z >> 15)) >> 8)) * 0x1p-24f;
}

constexpr int kSalts = 5;

// The format of results, and a random word of a sample for each rounding of an operation.
struct Noise {
  Format format;
  uint64_t words[kSalts] = {};
};

// Exact and Grid round results: not at all, or to a number of a format, the nearest or one of the two neighbours at random.
// They are types, so that loops are compiled for each of them. `salt` distinguishes the roundings of an operation; `place` is
// the index of the element in its sample.
struct Exact {
  static constexpr bool kRounds = false;
  explicit Exact(const Noise&) {}
  float operator()(float x, int, uint32_t) const { return x; }
};

template <Kind kind, bool random>
struct Grid {
  static constexpr bool kRounds = true;
  explicit Grid(const Noise& noise) : noise(noise) {}
  float operator()(float x, int salt, uint32_t place) const {
    if constexpr (!random) return to_nearest<kind>(x, noise.format);
    const uint64_t word = noise.words[salt];
    const float uniform = uniform_of(static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), place);
    return at_random<kind>(x, uniform, noise.format);
  }
  const Noise noise;
};

}  // namespace native

#endif  // EMULATOR_NATIVE_GRID_H_
