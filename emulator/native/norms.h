// What the norms share: activations and their gradients, and the work on one block of pixels.

#ifndef EMULATOR_NATIVE_NORMS_H_
#define EMULATOR_NATIVE_NORMS_H_

#include <cmath>
#include <string>

#include "emulator/native/blocks.h"

namespace native {

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

// For each channel.
struct Moments {
  std::vector<double> means, variances;
};

// The moments of `samples` samples from `first` on, of blocks' means and squared distances from them: the squared distances
// from another mean are a block's own + pixels * (its mean - that mean)^2. `total` adds up the channels that are normalised
// together, `count` values of each.
template <typename Total>
Moments merged(const Walk& walk, int64_t first, int64_t samples, const BlockSums& means, const BlockSums& squares,
               double count, Total total) {
  auto each_block = [&](auto visit) {
    for (int64_t sample = first; sample < first + samples; ++sample) {
      for (int64_t block = 0; block < walk.blocks; ++block) {
        const double pixels = walk.pixels_of(block);
        const float *own = means.of(sample, block), *own_squares = squares.of(sample, block);
        for (int64_t c = 0; c < walk.channels; ++c) visit(c, pixels, own[c], own_squares[c]);
      }
    }
  };
  std::vector<double> sums(walk.channels, 0.0), distances(walk.channels, 0.0);
  each_block([&](int64_t c, double pixels, double own, double) { sums[c] += pixels * own; });
  sums = total(sums);
  for (double& sum : sums) sum /= count;
  each_block([&](int64_t c, double pixels, double own, double square) {
    const double distance = own - sums[c];
    distances[c] += square + pixels * distance * distance;
  });
  distances = total(distances);
  for (double& distance : distances) distance /= count;
  return {sums, distances};
}

// Rows of channels that the work on a block reads: z = x * factor + shift, y = (activation(z) - centre) * outer, and the last
// two of input_gradients.
struct Channels {
  const float *factor, *shift, *mean = nullptr, *b = nullptr, *k = nullptr;
  const float *centre = nullptr, *outer = nullptr;  // of a proxy norm
};

// What a block's backward pass adds up, for each channel: dz = dy * outer * activation'(z), dz * (x - mean); and of a proxy
// norm dy, and dy * (activation(z) - centre).
struct Sums {
  float *slopes, *products, *arriving = nullptr, *scaled = nullptr;
};

// Work on a block that depends on the activation. No two of the rows overlap, nor do x, dy and a gradient (ivdep).
struct Blocks {
  void (*values)(const float* x, const Channels& rows, int64_t pixels, int64_t channels, float* y);
  void (*sums)(const float* x, const float* dy, const Channels& rows, int64_t pixels, int64_t channels, const Sums& sums);
  // dx = dz * factor + (x - mean) * b + k
  void (*gradients)(const float* x, const float* dy, const Channels& rows, int64_t pixels, int64_t channels, float* dx);
};

// y may be x.
template <Activation kind, bool proxy>
void values(const float* x, const Channels& rows, int64_t pixels, int64_t channels, float* y) {
  const float *factor = rows.factor, *shift = rows.shift, *centre = rows.centre, *outer = rows.outer;
  for (int64_t p = 0; p < pixels; ++p, x += channels, y += channels) {
#pragma GCC ivdep
    for (int64_t c = 0; c < channels; ++c) {
      const float value = activated<kind>(x[c] * factor[c] + shift[c]);
      y[c] = proxy ? (value - centre[c]) * outer[c] : value;
    }
  }
}

template <Activation kind, bool proxy>
void slope_sums(const float* __restrict x, const float* __restrict dy, const Channels& rows, int64_t pixels,
                int64_t channels, const Sums& sums) {
  const float *factor = rows.factor, *shift = rows.shift, *mean = rows.mean, *centre = rows.centre, *outer = rows.outer;
  float *slopes = sums.slopes, *products = sums.products, *arriving = sums.arriving, *scaled = sums.scaled;
  for (float* row : {slopes, products, arriving, scaled}) {
    if (row) std::fill(row, row + channels, 0.0f);
  }
  for (int64_t p = 0; p < pixels; ++p, x += channels, dy += channels) {
#pragma GCC ivdep
    for (int64_t c = 0; c < channels; ++c) {
      const float z = x[c] * factor[c] + shift[c];
      const float dz = activation_gradient<kind>(z, proxy ? dy[c] * outer[c] : dy[c]);
      slopes[c] += dz;
      products[c] += dz * (x[c] - mean[c]);
      if (proxy) {
        arriving[c] += dy[c];
        scaled[c] += dy[c] * (activated<kind>(z) - centre[c]);
      }
    }
  }
}

template <Activation kind, bool proxy>
void input_gradients(const float* __restrict x, const float* __restrict dy, const Channels& rows, int64_t pixels,
                     int64_t channels, float* __restrict dx) {
  const float *factor = rows.factor, *shift = rows.shift, *mean = rows.mean, *b = rows.b, *k = rows.k, *outer = rows.outer;
  for (int64_t p = 0; p < pixels; ++p, x += channels, dy += channels, dx += channels) {
#pragma GCC ivdep
    for (int64_t c = 0; c < channels; ++c) {
      const float dz = activation_gradient<kind>(x[c] * factor[c] + shift[c], proxy ? dy[c] * outer[c] : dy[c]);
      dx[c] = dz * factor[c] + (x[c] - mean[c]) * b[c] + k[c];
    }
  }
}

template <Activation kind, bool proxy>
Blocks blocks_of() {
  return {&values<kind, proxy>, &slope_sums<kind, proxy>, &input_gradients<kind, proxy>};
}

template <bool proxy>
Blocks blocks_of(const std::string& activation) {
  if (activation == "relu") return blocks_of<Activation::kRelu, proxy>();
  if (activation == "relu6") return blocks_of<Activation::kRelu6, proxy>();
  if (activation == "swish") return blocks_of<Activation::kSwish, proxy>();
  return blocks_of<Activation::kLinear, proxy>();
}

// factor = r * gamma and shift = beta - mean * factor, so that z = x * factor + shift.
inline void scale(int64_t channels, const float* gamma, const float* beta, const float* mean, const float* r, float* factor,
                  float* shift) {
  for (int64_t c = 0; c < channels; ++c) {
    factor[c] = r[c] * gamma[c];
    shift[c] = beta[c] - mean[c] * factor[c];
  }
}

// Sets the context's status unless the inputs after the first have these numbers of elements.
inline void check_sizes(OpKernelContext* context, const std::vector<int64_t>& sizes) {
  const Tensor& x = context->input(0);
  OP_REQUIRES(context, x.dims() == 4 && x.NumElements() > 0,
              InvalidArgument("a norm's input has 4 dimensions, and elements"));
  for (size_t k = 0; k < sizes.size(); ++k) {
    OP_REQUIRES(context, context->input(k + 1).NumElements() == sizes[k],
                InvalidArgument("input ", k + 1, " has another shape"));
  }
}

}  // namespace native

#endif  // EMULATOR_NATIVE_NORMS_H_
