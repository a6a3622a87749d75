// Activations, their gradients, and the factors of norms.

#ifndef EMULATOR_NATIVE_NORMS_H_
#define EMULATOR_NATIVE_NORMS_H_

#include <cmath>
#include <string>

#include "emulator/native/results.h"
#include "emulator/native/storage.h"

namespace native {

// Returns a * b + c. Processors with FMA round only once.
inline float fused(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// Returns e^x to about one unit in the last place, as 2^n * e^r with |r| <= ln(2) / 2. e^r is a polynomial of degree 7. This
// is plain arithmetic, so compilers can vectorise it.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds a number to an integer
  const float n = fused(x, 1.44269504f, kToInteger) - kToInteger;
  const float r = fused(n, 2.12194440e-4f, fused(n, -0.693359375f, x));  // ln(2) in two parts, the first of few bits
  float p = 1.0f / 5040;
  p = fused(p, r, 1.0f / 720);
  p = fused(p, r, 1.0f / 120);
  p = fused(p, r, 1.0f / 24);
  p = fused(p, r, 1.0f / 6);
  p = fused(p, r, 0.5f);
  p = fused(p, r * r, r) + 1.0f;
  const uint32_t exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;  // any number for a NaN
  return p * __builtin_bit_cast(float, exponent);
}

inline float sigmoid(float z) { return 1.0f / (1.0f + exponential(-z)); }

enum class Activation { kLinear, kRelu, kRelu6, kSwish, kSigmoid };

// Applies the activation. NaN stays NaN.
template <Activation kind>
inline float activated(float z) {
  if constexpr (kind == Activation::kRelu) return z <= 0.0f ? 0.0f : z;
  if constexpr (kind == Activation::kRelu6) return z <= 0.0f ? 0.0f : (z >= 6.0f ? 6.0f : z);
  if constexpr (kind == Activation::kSwish) return z / (1.0f + exponential(-z));
  if constexpr (kind == Activation::kSigmoid) return sigmoid(z);
  return z;
}

template <Activation kind>
inline float activation_gradient(float z, float dy) {
  if constexpr (kind == Activation::kRelu) return z > 0.0f ? dy : 0.0f;
  if constexpr (kind == Activation::kRelu6) return (z > 0.0f) & (z < 6.0f) ? dy : 0.0f;
  if constexpr (kind == Activation::kSwish) {
    const float s = sigmoid(z);
    return dy * s * (1.0f + z * (1.0f - s));
  }
  return dy;
}

// Computes sums[c] = the sum of term(x, c) over the pixels, four pixels at a time.
template <typename Term>
inline void sum_pixels(const float* __restrict x, int64_t pixels, int64_t channels, float* __restrict sums, Term term) {
  std::fill(sums, sums + channels, 0.0f);
  int64_t p = 0;
  for (; p + 4 <= pixels; p += 4, x += 4 * channels) {
    const float *x1 = x + channels, *x2 = x1 + channels, *x3 = x2 + channels;
    for (int64_t c = 0; c < channels; ++c) {
      sums[c] += (term(x[c], c) + term(x1[c], c)) + (term(x2[c], c) + term(x3[c], c));
    }
  }
  for (; p < pixels; ++p, x += channels) {
    for (int64_t c = 0; c < channels; ++c) sums[c] += term(x[c], c);
  }
}

// Computes r = 1 / sqrt(variance + epsilon).
inline void invert(int64_t channels, const float* variance, float epsilon, float* r) {
  for (int64_t c = 0; c < channels; ++c) r[c] = 1.0f / std::sqrt(variance[c] + epsilon);
}

// Computes factor = r * gamma and shift = beta - mean * factor, so that z = x * factor + shift.
inline void scale(int64_t channels, const float* gamma, const float* beta, const float* mean, const float* r, float* factor,
                  float* shift) {
  for (int64_t c = 0; c < channels; ++c) {
    factor[c] = r[c] * gamma[c];
    shift[c] = beta[c] - mean[c] * factor[c];
  }
}

}  // namespace native

#endif  // EMULATOR_NATIVE_NORMS_H_
