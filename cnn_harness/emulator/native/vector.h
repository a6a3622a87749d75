// Vectors of FP32 numbers on any processor. Other files of products name neither a width nor an instruction.

#ifndef EMULATOR_NATIVE_VECTOR_H_
#define EMULATOR_NATIVE_VECTOR_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace native {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kRegisters = 32;
#else
constexpr int kVectorBytes = 16, kRegisters = 16;
#endif

typedef float Lanes __attribute__((vector_size(kVectorBytes)));
constexpr int64_t kLanes = kVectorBytes / sizeof(float);
constexpr int64_t kLine = 16;  // A cache line has this many numbers.
// A tile of a matrix product has this many rows of two vectors. Their sums take three quarters of the registers.
constexpr int kTileRows = kRegisters * 3 / 8;

inline Lanes load(const float* from) {
  Lanes x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

inline void store(const Lanes& x, float* to) { std::memcpy(to, &x, sizeof(x)); }

// The first `count` numbers of a vector, which are all that exist at the end of a row. A count below 0 means none, and a
// large count all.
class First {
 public:
  explicit First(int64_t count = kLanes) : count_(std::clamp<int64_t>(count, 0, kLanes)) {
#if defined(__AVX512F__)
    mask_ = static_cast<__mmask16>((1u << count_) - 1);
#elif defined(__AVX__)
    static const int32_t kMasks[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1};
    mask_ = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + kLanes - count_));
#endif
  }

  // Returns the numbers, and zeros in the other places.
  Lanes load(const float* from) const {
    if (__builtin_constant_p(count_) && count_ == kLanes) return native::load(from);  // no mask is needed
#if defined(__AVX512F__)
    return (Lanes)_mm512_maskz_loadu_ps(mask_, from);
#elif defined(__AVX__)
    return (Lanes)_mm256_maskload_ps(from, mask_);
#else
    Lanes x = {};
    std::memcpy(&x, from, count_ * sizeof(float));
    return x;
#endif
  }

  void store(const Lanes& x, float* to) const {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, mask_, (__m512)x);
#else
    if (count_ == kLanes) {  // masked stores are slow on some processors
      native::store(x, to);
    } else {
      for (int64_t k = 0; k < count_; ++k) to[k] = x[k];
    }
#endif
  }

 private:
  int64_t count_;
#if defined(__AVX512F__)
  __mmask16 mask_;
#elif defined(__AVX__)
  __m256i mask_;
#endif
};

// Stores a vector past the caches, if the processor can do this. The address must be a multiple of the vector's size.
inline void store_past_caches(const Lanes& x, float* to) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX__)
  _mm256_stream_ps(to, (__m256)x);
#elif defined(__x86_64__)
  _mm_stream_ps(to, (__m128)x);
#else
  store(x, to);
#endif
}

// Waits until other threads can see what was stored past the caches.
inline void end_stores_past_caches() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Returns a vector with the same number in all places.
inline Lanes splat(float x) { return x - Lanes{}; }

// Returns a * b + c. Processors with FMA round only once.
inline Lanes add_product(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Lanes)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// Returns numbers of a and b in turn: those from place `from` on.
template <int from, int... k>
inline Lanes interleave(Lanes a, Lanes b, std::integer_sequence<int, k...>) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, (from + k / 2 + k % 2 * static_cast<int>(kLanes))...);
#else
  typedef int32_t Places __attribute__((vector_size(kVectorBytes)));
  return __builtin_shuffle(a, b, Places{static_cast<int32_t>(from + k / 2 + k % 2 * kLanes)...});
#endif
}

// Transposes kLanes x kLanes numbers. Rows are `row` numbers apart in `from` and `to_row` numbers apart in `to`.
inline void transpose(const float* from, int64_t row, float* to, int64_t to_row) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  Lanes own[kLanes], next[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) own[i] = load(from + i * row);
#pragma GCC unroll 4
  for (int step = 1; step < kLanes; step *= 2) {  // each step moves one bit of a number's column into its row
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave<0>(own[i], own[i + kLanes / 2], kAll);
      next[2 * i + 1] = interleave<kLanes / 2>(own[i], own[i + kLanes / 2], kAll);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) own[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(own[i], to + i * to_row);
}

// The numbers of a vector in double precision.
struct Doubles {
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
  typedef double Wide __attribute__((vector_size(kVectorBytes)));

  explicit Doubles(const float* from) : low(widened(from)), high(widened(from + kLanes / 2)) {}
  Doubles(Wide low = Wide{}, Wide high = Wide{}) : low(low), high(high) {}

  Doubles operator+(const Doubles& other) const { return {low + other.low, high + other.high}; }
  Doubles operator-(const Doubles& other) const { return {low - other.low, high - other.high}; }
  Doubles operator*(double factor) const { return {low * factor, high * factor}; }

  void store(float* to) const {
    const Half first = __builtin_convertvector(low, Half), second = __builtin_convertvector(high, Half);
    std::memcpy(to, &first, sizeof(first));
    std::memcpy(to + kLanes / 2, &second, sizeof(second));
  }

  static Wide widened(const float* from) {
#if defined(__AVX512F__)  // compilers would use narrower vectors
    return (Wide)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif defined(__AVX__)
    return (Wide)_mm256_cvtps_pd(_mm_loadu_ps(from));
#else
    Half x;
    std::memcpy(&x, from, sizeof(x));
    return __builtin_convertvector(x, Wide);
#endif
  }

  Wide low, high;
};

}  // namespace native

#endif  // EMULATOR_NATIVE_VECTOR_H_
