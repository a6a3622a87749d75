// FP32 onto FP16's grid, one number at a time, to the nearest or at random.
//
// Steps and their order are those of emulator/layers/half.py and base/draws.py, and so is every bit: FP32's own arithmetic is
// exact in each of them but the one that rounds. An instruction that converts to FP16 would not keep the bits of a NaN, nor
// be faster than memory is.

#ifndef EMULATOR_NATIVE_HALF_H_
#define EMULATOR_NATIVE_HALF_H_

#include <cmath>
#include <cstdint>

namespace native {

constexpr int32_t kFraction = 23, kDropped = 13;
constexpr int32_t kSmallestExponent = (127 - 14) << kFraction, kBeyondExponent = (127 + 16) << kFraction;
constexpr uint32_t kSign = 0x80000000u;
constexpr float kLargest = 65504.0f;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

inline float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }

inline int32_t exponent_of(uint32_t bits) {
  const int32_t exponent = bits & 0x7F800000;
  const int32_t normal = exponent < kSmallestExponent ? kSmallestExponent : exponent;
  return normal > kBeyondExponent ? kBeyondExponent : normal;
}

inline float finished(float y, float beyond, uint32_t bits) {
  return as_float(as_bits(y > kLargest ? beyond : y) | (bits & kSign));
}

inline float to_nearest(float x, float beyond) {
  const uint32_t bits = as_bits(x);
  const float shifter = as_float(exponent_of(bits) + ((kDropped << kFraction) | (1 << (kFraction - 1))));
  return finished((as_float(bits & ~kSign) + shifter) - shifter, beyond, bits);
}

// `uniform`: in [0, 1).
inline float at_random(float x, float uniform, float beyond) {
  const uint32_t bits = as_bits(x);
  const float step = as_float(exponent_of(bits) - ((kFraction - kDropped) << kFraction));
  const float steps = as_float(bits & ~kSign) / step;
  const float below = std::floor(steps);
  return finished((below + (uniform < steps - below ? 1.0f : 0.0f)) * step, beyond, bits);
}

// draws.bits(salt, noise)
inline uint64_t word_of(uint64_t salt, uint64_t noise) {
  uint64_t z = salt + kGolden * (noise + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// draws.uniform_of_words
inline float uniform_of(uint32_t low, uint32_t high, uint32_t place) {
  uint32_t z = place * static_cast<uint32_t>(kGolden >> 32) + low;
  z = (z ^ (z >> 16)) * 0x21F0AAADu;
  z = (z ^ (z >> 15)) * 0x735A2D97u;
  z = z ^ (z >> 15) ^ high;
  z = (z ^ (z >> 16)) * 0x21F0AAADu;
  return static_cast<float>(static_cast<int32_t>((z ^ (z >> 15)) >> 8)) * 0x1p-24f;
}

// What an operation's results are rounded to, by type, so that loops over elements are compiled for each: nothing, the
// nearest number of FP16, or a neighbour at random. `salt` tells the roundings of an operation apart, `place` is the element's
// in its sample.
constexpr int kSalts = 5;

struct Noise {
  float beyond = 0;           // what a size larger than FP16's largest becomes
  uint64_t words[kSalts] = {};  // of a sample
};

struct Exact {
  static constexpr bool kRounds = false;
  explicit Exact(const Noise&) {}
  float operator()(float x, int, uint32_t) const { return x; }
};

struct Nearest {
  static constexpr bool kRounds = true;
  explicit Nearest(const Noise& noise) : beyond(noise.beyond) {}
  float operator()(float x, int, uint32_t) const { return to_nearest(x, beyond); }
  const float beyond;
};

struct AtRandom {
  static constexpr bool kRounds = true;
  explicit AtRandom(const Noise& noise) : beyond(noise.beyond) {
    for (int salt = 0; salt < kSalts; ++salt) {
      low[salt] = static_cast<uint32_t>(noise.words[salt]);
      high[salt] = static_cast<uint32_t>(noise.words[salt] >> 32);
    }
  }
  float operator()(float x, int salt, uint32_t place) const {
    return at_random(x, uniform_of(low[salt], high[salt], place), beyond);
  }
  const float beyond;
  uint32_t low[kSalts], high[kSalts];
};

}  // namespace native

#endif  // EMULATOR_NATIVE_HALF_H_
