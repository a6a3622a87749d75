// Winograd's minimal filtering with kernels of three taps, along one axis of a tile, for two or four results:
//
//   y = A^T ((G w) * (B^T x))
//
// x has the inputs of a tile, w the weights, y the results. The matrices A, B and G follow from the Toom-Cook algorithm
// (Lavin & Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016). Its points are 0, 1, -1 and infinity for two
// results, and 0, 3/4, -3/4, 3/2, -3/2 and infinity for four. Among points whose powers are exact, these cause the least
// rounding error (Barabasz et al., *Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural
// Networks*, 2020).

#ifndef EMULATOR_NATIVE_FILTERING_H_
#define EMULATOR_NATIVE_FILTERING_H_

#ifdef __AVX512F__

#include <immintrin.h>

namespace native {

// The 16 numbers of a vector in double precision.
struct Numbers {
  Numbers() : low(_mm512_setzero_pd()), high(_mm512_setzero_pd()) {}
  Numbers(__m512d low, __m512d high) : low(low), high(high) {}
  explicit Numbers(const float* from)
      : low(_mm512_cvtps_pd(_mm256_loadu_ps(from))), high(_mm512_cvtps_pd(_mm256_loadu_ps(from + 8))) {}

  Numbers operator+(const Numbers& other) const { return {_mm512_add_pd(low, other.low), _mm512_add_pd(high, other.high)}; }
  Numbers operator-(const Numbers& other) const { return {_mm512_sub_pd(low, other.low), _mm512_sub_pd(high, other.high)}; }
  Numbers operator*(double factor) const {
    const __m512d all = _mm512_set1_pd(factor);
    return {_mm512_mul_pd(low, all), _mm512_mul_pd(high, all)};
  }
  void store(float* to) const {
    _mm256_storeu_ps(to, _mm512_cvtpd_ps(low));
    _mm256_storeu_ps(to + 8, _mm512_cvtpd_ps(high));
  }

  __m512d low, high;
};

// Returns a * factor + b.
inline __m512 add_times(__m512 b, float factor, __m512 a) { return _mm512_fmadd_ps(_mm512_set1_ps(factor), a, b); }

struct InTwos {
  static constexpr int kTile = 2, kSide = 4;  // the numbers of results and of inputs of a tile

  // B^T x
  static inline void of_inputs(const __m512 (&x)[kSide], __m512 (&to)[kSide]) {
    to[0] = _mm512_sub_ps(x[0], x[2]);
    to[1] = _mm512_add_ps(x[1], x[2]);
    to[2] = _mm512_sub_ps(x[2], x[1]);
    to[3] = _mm512_sub_ps(x[1], x[3]);
  }

  // A^T m
  static inline void to_results(const __m512 (&m)[kSide], __m512 (&y)[kTile]) {
    y[0] = _mm512_add_ps(m[0], _mm512_add_ps(m[1], m[2]));
    y[1] = _mm512_sub_ps(_mm512_sub_ps(m[1], m[2]), m[3]);
  }

  // A dy
  static inline void of_gradients(const __m512 (&dy)[kTile], __m512 (&to)[kSide]) {
    to[0] = dy[0];
    to[1] = _mm512_add_ps(dy[0], dy[1]);
    to[2] = _mm512_sub_ps(dy[0], dy[1]);
    to[3] = _mm512_sub_ps(_mm512_setzero_ps(), dy[1]);
  }

  // G w
  static inline void of_weights(const __m512 (&w)[3], __m512 (&to)[kSide]) {
    const __m512 half = _mm512_set1_ps(0.5f), sum = _mm512_add_ps(w[0], w[2]);
    to[0] = w[0];
    to[1] = _mm512_mul_ps(half, _mm512_add_ps(sum, w[1]));
    to[2] = _mm512_mul_ps(half, _mm512_sub_ps(sum, w[1]));
    to[3] = w[2];
  }

  // G^T du
  static inline void to_weights(const Numbers (&du)[kSide], Numbers (&dw)[3]) {
    const Numbers sum = (du[1] + du[2]) * 0.5;
    dw[0] = du[0] + sum;
    dw[1] = (du[1] - du[2]) * 0.5;
    dw[2] = sum + du[3];
  }
};

struct InFours {
  static constexpr int kTile = 4, kSide = 6;

  static inline void of_inputs(const __m512 (&x)[kSide], __m512 (&to)[kSide]) {
    const __m512 even_near = add_times(x[4], -kFar2, x[2]), odd_near = add_times(x[3], -kFar2, x[1]),
                 even_far = add_times(x[4], -kNear2, x[2]), odd_far = add_times(x[3], -kNear2, x[1]);
    to[0] = add_times(add_times(x[4], -(kNear2 + kFar2), x[2]), kNear2 * kFar2, x[0]);
    to[1] = add_times(even_near, kNear, odd_near);
    to[2] = add_times(even_near, -kNear, odd_near);
    to[3] = add_times(even_far, kFar, odd_far);
    to[4] = add_times(even_far, -kFar, odd_far);
    to[5] = add_times(add_times(x[5], -(kNear2 + kFar2), x[3]), kNear2 * kFar2, x[1]);
  }

  static inline void to_results(const __m512 (&m)[kSide], __m512 (&y)[kTile]) {
    const __m512 even_near = _mm512_add_ps(m[1], m[2]), odd_near = _mm512_sub_ps(m[1], m[2]),
                 even_far = _mm512_add_ps(m[3], m[4]), odd_far = _mm512_sub_ps(m[3], m[4]), zero = _mm512_setzero_ps();
    y[0] = _mm512_add_ps(_mm512_add_ps(m[0], even_near), even_far);
    y[1] = add_times(add_times(zero, kNear, odd_near), kFar, odd_far);
    y[2] = add_times(add_times(zero, kNear2, even_near), kFar2, even_far);
    y[3] = add_times(add_times(m[5], kNear * kNear2, odd_near), kFar * kFar2, odd_far);
  }

  static inline void of_gradients(const __m512 (&dy)[kTile], __m512 (&to)[kSide]) {
    const __m512 even_near = add_times(dy[0], kNear2, dy[2]), odd_near = add_times(dy[1], kNear2, dy[3]),
                 even_far = add_times(dy[0], kFar2, dy[2]), odd_far = add_times(dy[1], kFar2, dy[3]);
    to[0] = dy[0];
    to[1] = add_times(even_near, kNear, odd_near);
    to[2] = add_times(even_near, -kNear, odd_near);
    to[3] = add_times(even_far, kFar, odd_far);
    to[4] = add_times(even_far, -kFar, odd_far);
    to[5] = dy[3];
  }

  static inline void of_weights(const __m512 (&w)[3], __m512 (&to)[kSide]) {
    const __m512 zero = _mm512_setzero_ps();
    const __m512 even_near = add_times(add_times(zero, kOfNear, w[0]), kOfNear * kNear2, w[2]),
                 even_far = add_times(add_times(zero, kOfFar, w[0]), kOfFar * kFar2, w[2]);
    to[0] = add_times(zero, kOfZero, w[0]);
    to[1] = add_times(even_near, kOfNear * kNear, w[1]);
    to[2] = add_times(even_near, -kOfNear * kNear, w[1]);
    to[3] = add_times(even_far, kOfFar * kFar, w[1]);
    to[4] = add_times(even_far, -kOfFar * kFar, w[1]);
    to[5] = w[2];
  }

  static inline void to_weights(const Numbers (&du)[kSide], Numbers (&dw)[3]) {
    const Numbers even_near = (du[1] + du[2]) * kOfNear, even_far = (du[3] + du[4]) * kOfFar;
    dw[0] = du[0] * kOfZero + even_near + even_far;
    dw[1] = (du[1] - du[2]) * (kOfNear * kNear) + (du[3] - du[4]) * (kOfFar * kFar);
    dw[2] = even_near * kNear2 + even_far * kFar2 + du[5];
  }

  // The points, their squares, and for each point 1 / (product of its distances from the other points).
  static constexpr double kNear = 0.75, kFar = 1.5, kNear2 = kNear * kNear, kFar2 = kFar * kFar;
  static constexpr double kOfZero = 1 / (kNear2 * kFar2), kOfNear = 1 / (2 * kNear2 * (kNear2 - kFar2)),
                          kOfFar = 1 / (2 * kFar2 * (kFar2 - kNear2));
};

}  // namespace native

#endif  // __AVX512F__

#endif  // EMULATOR_NATIVE_FILTERING_H_
