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

#include "emulator/native/vector.h"

namespace native {

// Returns a * factor + b.
inline Lanes add_times(Lanes b, float factor, Lanes a) { return add_product(splat(factor), a, b); }

struct InTwos {
  static constexpr int kTile = 2, kSide = 4;  // the numbers of results and of inputs of a tile

  // B^T x
  static inline void of_inputs(const Lanes (&x)[kSide], Lanes (&to)[kSide]) {
    to[0] = x[0] - x[2];
    to[1] = x[1] + x[2];
    to[2] = x[2] - x[1];
    to[3] = x[1] - x[3];
  }

  // A^T m
  static inline void to_results(const Lanes (&m)[kSide], Lanes (&y)[kTile]) {
    y[0] = m[0] + (m[1] + m[2]);
    y[1] = m[1] - m[2] - m[3];
  }

  // A dy
  static inline void of_gradients(const Lanes (&dy)[kTile], Lanes (&to)[kSide]) {
    to[0] = dy[0];
    to[1] = dy[0] + dy[1];
    to[2] = dy[0] - dy[1];
    to[3] = Lanes{} - dy[1];
  }

  // G w
  static inline void of_weights(const Lanes (&w)[3], Lanes (&to)[kSide]) {
    const Lanes sum = w[0] + w[2];
    to[0] = w[0];
    to[1] = (sum + w[1]) * 0.5f;
    to[2] = (sum - w[1]) * 0.5f;
    to[3] = w[2];
  }

  // G^T du
  static inline void to_weights(const Doubles (&du)[kSide], Doubles (&dw)[3]) {
    const Doubles sum = (du[1] + du[2]) * 0.5;
    dw[0] = du[0] + sum;
    dw[1] = (du[1] - du[2]) * 0.5;
    dw[2] = sum + du[3];
  }
};

struct InFours {
  static constexpr int kTile = 4, kSide = 6;

  static inline void of_inputs(const Lanes (&x)[kSide], Lanes (&to)[kSide]) {
    to[0] = add_times(add_times(x[4], -(kNear2 + kFar2), x[2]), kNear2 * kFar2, x[0]);
    add_and_subtract(add_times(x[4], -kFar2, x[2]), kNear, add_times(x[3], -kFar2, x[1]), to + 1);
    add_and_subtract(add_times(x[4], -kNear2, x[2]), kFar, add_times(x[3], -kNear2, x[1]), to + 3);
    to[5] = add_times(add_times(x[5], -(kNear2 + kFar2), x[3]), kNear2 * kFar2, x[1]);
  }

  static inline void to_results(const Lanes (&m)[kSide], Lanes (&y)[kTile]) {
    const Lanes even_near = m[1] + m[2], odd_near = m[1] - m[2], even_far = m[3] + m[4], odd_far = m[3] - m[4];
    y[0] = m[0] + even_near + even_far;
    y[1] = add_times(add_times(Lanes{}, kNear, odd_near), kFar, odd_far);
    y[2] = add_times(add_times(Lanes{}, kNear2, even_near), kFar2, even_far);
    y[3] = add_times(add_times(m[5], kNear * kNear2, odd_near), kFar * kFar2, odd_far);
  }

  static inline void of_gradients(const Lanes (&dy)[kTile], Lanes (&to)[kSide]) {
    to[0] = dy[0];
    add_and_subtract(add_times(dy[0], kNear2, dy[2]), kNear, add_times(dy[1], kNear2, dy[3]), to + 1);
    add_and_subtract(add_times(dy[0], kFar2, dy[2]), kFar, add_times(dy[1], kFar2, dy[3]), to + 3);
    to[5] = dy[3];
  }

  static inline void of_weights(const Lanes (&w)[3], Lanes (&to)[kSide]) {
    auto even = [&w](double scale, double square) { return add_times(add_times(Lanes{}, scale, w[0]), scale * square, w[2]); };
    to[0] = add_times(Lanes{}, kOfZero, w[0]);
    add_and_subtract(even(kOfNear, kNear2), kOfNear * kNear, w[1], to + 1);
    add_and_subtract(even(kOfFar, kFar2), kOfFar * kFar, w[1], to + 3);
    to[5] = w[2];
  }

  static inline void to_weights(const Doubles (&du)[kSide], Doubles (&dw)[3]) {
    const Doubles even_near = (du[1] + du[2]) * kOfNear, even_far = (du[3] + du[4]) * kOfFar;
    dw[0] = du[0] * kOfZero + even_near + even_far;
    dw[1] = (du[1] - du[2]) * (kOfNear * kNear) + (du[3] - du[4]) * (kOfFar * kFar);
    dw[2] = even_near * kNear2 + even_far * kFar2 + du[5];
  }

  // The points x and -x: to = even + x * odd and even - x * odd.
  static inline void add_and_subtract(Lanes even, float x, Lanes odd, Lanes* to) {
    to[0] = add_times(even, x, odd);
    to[1] = add_times(even, -x, odd);
  }

  // The points, their squares, and for each point 1 / (product of its distances from the other points).
  static constexpr double kNear = 0.75, kFar = 1.5, kNear2 = kNear * kNear, kFar2 = kFar * kFar;
  static constexpr double kOfZero = 1 / (kNear2 * kFar2), kOfNear = 1 / (2 * kNear2 * (kNear2 - kFar2)),
                          kOfFar = 1 / (2 * kFar2 * (kFar2 - kNear2));
};

}  // namespace native

#endif  // EMULATOR_NATIVE_FILTERING_H_
