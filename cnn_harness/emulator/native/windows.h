// The windows of a convolution with SAME padding.

#ifndef EMULATOR_NATIVE_WINDOWS_H_
#define EMULATOR_NATIVE_WINDOWS_H_

#include "emulator/native/blocks.h"

namespace native {

inline int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// The sizes of a convolution along one axis. `before` is the padding before the first pixel.
struct Axis {
  Axis(int64_t in, int64_t kernel, int64_t stride)
      : in(in), out((in + stride - 1) / stride), kernel(kernel), stride(stride),
        before(std::max<int64_t>((out - 1) * stride + kernel - in, 0) / 2) {}

  int64_t in, out, kernel, stride, before;
};

// The range [first, last) of the taps of a window that are inside the image.
struct Taps {
  int64_t first, last;
};

inline Taps taps_of(const Axis& axis, int64_t place) {
  const int64_t start = place * axis.stride - axis.before;
  return {std::max<int64_t>(-start, 0), std::min(axis.kernel, axis.in - start)};
}

}  // namespace native

#endif  // EMULATOR_NATIVE_WINDOWS_H_
