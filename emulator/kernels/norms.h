// What the norms share: activations and their gradients, and the work on one block of pixels.

#ifndef EMULATOR_KERNELS_NORMS_H_
#define EMULATOR_KERNELS_NORMS_H_

#include <cmath>
#include <string>

#include "emulator/kernels/blocks.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace kernels {

// e^x, to about one unit in the last place: 2^n * e^r with |r| <= ln(2) / 2, and e^r from its polynomial of degree 7. Plain
// arithmetic, which compilers vectorise.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is worth 1
  const float n = (x * 1.44269504f + kToInteger) - kToInteger;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln(2) in two parts, of which the first has few bits
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * (r * r) + r) + 1.0f;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  return p * __builtin_bit_cast(float, exponent);
}

inline float sigmoid(float z) { return 1.0f / (1.0f + exponential(-z)); }

enum class Activation { kLinear, kRelu, kRelu6, kSwish };

template <Activation kind>
inline float activated(float z) {
  if constexpr (kind == Activation::kRelu) return z > 0.0f ? z : 0.0f;
  if constexpr (kind == Activation::kRelu6) return z > 0.0f ? (z < 6.0f ? z : 6.0f) : 0.0f;
  if constexpr (kind == Activation::kSwish) return z * sigmoid(z);
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

// sums[c] = the sum of term(x, c) over the pixels, four at a time.
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

// A block's means, and the sums of the squared distances from them: two passes over the block, the second from the cache.
inline void moments(const float* __restrict x, int64_t pixels, int64_t channels, float* __restrict means,
                    float* __restrict squares) {
  sum_pixels(x, pixels, channels, means, [](float v, int64_t) { return v; });
  for (int64_t c = 0; c < channels; ++c) means[c] /= static_cast<float>(pixels);
  sum_pixels(x, pixels, channels, squares, [means](float v, int64_t c) { return (v - means[c]) * (v - means[c]); });
}

// Work on a block that depends on the activation.
struct Blocks {
  // y = activation(x * factor + shift)
  void (*values)(const float* x, const float* factor, const float* shift, int64_t pixels, int64_t channels, float* y);
  // The sums of dz = dy * activation'(x * factor + shift), and those of dz * (x - mean).
  void (*sums)(const float* x, const float* dy, const float* factor, const float* shift, const float* mean, int64_t pixels,
               int64_t channels, float* sums, float* products);
  // dx = dz * factor + (x - mean) * b + k
  void (*gradients)(const float* x, const float* dy, const float* factor, const float* shift, const float* mean,
                    const float* b, const float* k, int64_t pixels, int64_t channels, float* dx);
};

template <Activation kind>
void values(const float* __restrict x, const float* __restrict factor, const float* __restrict shift, int64_t pixels,
            int64_t channels, float* __restrict y) {
  for (int64_t p = 0; p < pixels; ++p, x += channels, y += channels) {
    for (int64_t c = 0; c < channels; ++c) y[c] = activated<kind>(x[c] * factor[c] + shift[c]);
  }
}

template <Activation kind>
void slope_sums(const float* __restrict x, const float* __restrict dy, const float* __restrict factor,
                const float* __restrict shift, const float* __restrict mean, int64_t pixels, int64_t channels,
                float* __restrict sums, float* __restrict products) {
  std::fill(sums, sums + channels, 0.0f);
  std::fill(products, products + channels, 0.0f);
  for (int64_t p = 0; p < pixels; ++p, x += channels, dy += channels) {
    for (int64_t c = 0; c < channels; ++c) {
      const float dz = activation_gradient<kind>(x[c] * factor[c] + shift[c], dy[c]);
      sums[c] += dz;
      products[c] += dz * (x[c] - mean[c]);
    }
  }
}

template <Activation kind>
void input_gradients(const float* __restrict x, const float* __restrict dy, const float* __restrict factor,
                     const float* __restrict shift, const float* __restrict mean, const float* __restrict b,
                     const float* __restrict k, int64_t pixels, int64_t channels, float* __restrict dx) {
  for (int64_t p = 0; p < pixels; ++p, x += channels, dy += channels, dx += channels) {
    for (int64_t c = 0; c < channels; ++c) {
      const float dz = activation_gradient<kind>(x[c] * factor[c] + shift[c], dy[c]);
      dx[c] = dz * factor[c] + (x[c] - mean[c]) * b[c] + k[c];
    }
  }
}

template <Activation kind>
Blocks blocks_of() {
  return {&values<kind>, &slope_sums<kind>, &input_gradients<kind>};
}

inline Blocks blocks_of(const std::string& activation) {
  if (activation == "relu") return blocks_of<Activation::kRelu>();
  if (activation == "relu6") return blocks_of<Activation::kRelu6>();
  if (activation == "swish") return blocks_of<Activation::kSwish>();
  return blocks_of<Activation::kLinear>();
}

// factor = r * gamma and shift = beta - mean * factor, so that z = x * factor + shift.
inline void scale(int64_t channels, const float* gamma, const float* beta, const float* mean, const float* r, float* factor,
                  float* shift) {
  for (int64_t c = 0; c < channels; ++c) {
    factor[c] = r[c] * gamma[c];
    shift[c] = beta[c] - mean[c] * factor[c];
  }
}

// Sets the context's status unless the inputs from `first` on have these numbers of elements.
inline void check_sizes(tensorflow::OpKernelContext* context, int first, const std::vector<int64_t>& sizes) {
  const tensorflow::Tensor& x = context->input(0);
  OP_REQUIRES(context, x.dims() == 4 && x.NumElements() > 0,
              tensorflow::errors::InvalidArgument("a norm's input has 4 dimensions, and elements"));
  for (size_t k = 0; k < sizes.size(); ++k) {
    OP_REQUIRES(context, context->input(first + k).NumElements() == sizes[k],
                tensorflow::errors::InvalidArgument("input ", first + k, " has another shape"));
  }
}

}  // namespace kernels

#endif  // EMULATOR_KERNELS_NORMS_H_
