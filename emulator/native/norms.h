// Common code of the norms: activations, their gradients, and the work on one block of pixels.

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
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
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

// Computes the means of a block, and the sums of squared distances from the means. The second pass reads from the cache.
inline void moments(const float* __restrict x, int64_t pixels, int64_t channels, float* __restrict means,
                    float* __restrict squares) {
  sum_pixels(x, pixels, channels, means, [](float v, int64_t) { return v; });
  for (int64_t c = 0; c < channels; ++c) means[c] /= static_cast<float>(pixels);
  sum_pixels(x, pixels, channels, squares, [means](float v, int64_t c) { return (v - means[c]) * (v - means[c]); });
}

// Mean and variance for each channel.
struct Moments {
  std::vector<double> means, variances;
};

// Returns mean and variance over `samples` samples, beginning with `first`. `means` and `squares` are the means of blocks
// and the squared distances from them. The squared distances of a block from the common mean are squares + pixels * (mean of
// the block - common mean)^2. `total` adds up the channels that are normalised together; `count` is the number of values
// that are normalised together.
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

// Factors for each channel: z = x * factor + shift, y = (activation(z) - centre) * outer. The gradient of x also needs
// `mean`, `b` and `k` (see `Blocks::gradients`).
struct Channels {
  const float *factor, *shift, *mean = nullptr, *b = nullptr, *k = nullptr;
  const float *centre = nullptr, *outer = nullptr;  // only proxy norm has these
};

// Sums over a block for each channel, in the backward pass. `slopes` sums dz = dy * outer * activation'(z), and `products`
// sums dz * (x - mean). For proxy norm, `arriving` sums dy, and `scaled` sums dy * (activation(z) - centre).
struct Sums {
  float *slopes, *products, *arriving = nullptr, *scaled = nullptr;
};

// The salts of the five roundings of a norm: normalised value, activation, incoming gradient, dz, dx.
enum Salt { kNormed, kActivated, kArriving, kSlope, kOfInput };

// A block of a sample. `place` is the index of the block's first element in the sample; `noise` belongs to the sample.
struct Block {
  int64_t pixels, channels;
  uint32_t place = 0;
  Noise noise;
};

// Functions that work on a block, compiled for one activation and one rounding. Arrays of channels must not overlap each
// other, nor x, dy and dx, because `#pragma GCC ivdep` promises this to the compiler.
struct Blocks {
  void (*values)(const float* x, const Channels& rows, const Block& block, float* y);
  // With rounding, `sums` stores dz in dx for `gradients`. Without, `gradients` computes dz again, which is faster than
  // memory.
  void (*sums)(const float* x, const float* dy, const Channels& rows, const Block& block, const Sums& sums, float* dx);
  // Computes dx = dz * factor + (x - mean) * b + k.
  void (*gradients)(const float* x, const float* dy, const Channels& rows, const Block& block, float* dx);
};

// Computes y of a block. y may be the same array as x.
template <Activation kind, bool proxy, typename Grid>
void values(const float* x, const Channels& rows, const Block& block, float* y) {
  const float *factor = rows.factor, *shift = rows.shift, *centre = rows.centre, *outer = rows.outer;
  const Grid grid(block.noise);
  const int64_t channels = block.channels;
  uint32_t place = block.place;
  for (int64_t p = 0; p < block.pixels; ++p, x += channels, y += channels, place += channels) {
#pragma GCC ivdep
    for (int32_t c = 0; c < static_cast<int32_t>(channels); ++c) {
      const float z = grid(x[c] * factor[c] + shift[c], kNormed, place + c);
      const float value = activated<kind>(z);
      if constexpr (proxy) {
        y[c] = grid((value - centre[c]) * outer[c], kActivated, place + c);
      } else {
        y[c] = kind == Activation::kSwish ? grid(value, kActivated, place + c) : value;
      }
    }
  }
}

template <Activation kind, bool proxy, typename Grid>
void slope_sums(const float* __restrict x, const float* __restrict dy, const Channels& rows, const Block& block,
                const Sums& sums, float* __restrict dx) {
  const float *factor = rows.factor, *shift = rows.shift, *mean = rows.mean, *centre = rows.centre, *outer = rows.outer;
  float *slopes = sums.slopes, *products = sums.products, *arriving = sums.arriving, *scaled = sums.scaled;
  const Grid grid(block.noise);
  const int64_t channels = block.channels;
  uint32_t place = block.place;
  for (float* row : {slopes, products, arriving, scaled}) {
    if (row) std::fill(row, row + channels, 0.0f);
  }
  for (int64_t p = 0; p < block.pixels; ++p, x += channels, dy += channels, dx += channels, place += channels) {
#pragma GCC ivdep
    for (int32_t c = 0; c < static_cast<int32_t>(channels); ++c) {
      const float z = grid(x[c] * factor[c] + shift[c], kNormed, place + c);
      const float above = grid(dy[c], kArriving, place + c);
      const float dz = grid(activation_gradient<kind>(z, proxy ? above * outer[c] : above), kSlope, place + c);
      if constexpr (Grid::kRounds) dx[c] = dz;
      slopes[c] += dz;
      products[c] += dz * (x[c] - mean[c]);
      if constexpr (proxy) {
        arriving[c] += dy[c];
        const float value = activated<kind>(z) - centre[c];
        scaled[c] += dy[c] * (Grid::kRounds ? grid(value * outer[c], kActivated, place + c) / outer[c] : value);
      }
    }
  }
}

template <Activation kind, bool proxy, typename Grid>
void input_gradients(const float* __restrict x, const float* __restrict dy, const Channels& rows, const Block& block,
                     float* __restrict dx) {
  const float *factor = rows.factor, *shift = rows.shift, *mean = rows.mean, *b = rows.b, *k = rows.k, *outer = rows.outer;
  const Grid grid(block.noise);
  const int64_t channels = block.channels;
  uint32_t place = block.place;
  for (int64_t p = 0; p < block.pixels; ++p, x += channels, dy += channels, dx += channels, place += channels) {
#pragma GCC ivdep
    for (int32_t c = 0; c < static_cast<int32_t>(channels); ++c) {
      const float dz = Grid::kRounds ? dx[c]
                                     : activation_gradient<kind>(x[c] * factor[c] + shift[c],
                                                                 proxy ? dy[c] * outer[c] : dy[c]);
      dx[c] = grid(dz * factor[c] + (x[c] - mean[c]) * b[c] + k[c], kOfInput, place + c);
    }
  }
}

template <Activation kind, bool proxy, typename Grid>
Blocks blocks_of() {
  return {&values<kind, proxy, Grid>, &slope_sums<kind, proxy, Grid>, &input_gradients<kind, proxy, Grid>};
}

template <bool proxy, typename Grid>
Blocks blocks_of(const std::string& activation) {
  if (activation == "relu") return blocks_of<Activation::kRelu, proxy, Grid>();
  if (activation == "relu6") return blocks_of<Activation::kRelu6, proxy, Grid>();
  if (activation == "swish") return blocks_of<Activation::kSwish, proxy, Grid>();
  return blocks_of<Activation::kLinear, proxy, Grid>();  // kActivations allows no others
}

// The five roundings of a norm.
class NormRounding : public RoundingRules {
 public:
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(RoundingRules::read(context));
    if (kind == Kind::kUnsignedZero) return InvalidArgument("norms cannot round to a format without a negative zero");
    return absl::OkStatus();
  }

  template <bool proxy>
  Blocks blocks(const std::string& activation) const {
    if (rounding == "none") return blocks_of<proxy, Exact>(activation);
    return kind == Kind::kShortened ? blocks<proxy, Kind::kShortened>(activation)
                                     : blocks<proxy, Kind::kNarrow>(activation);
  }

  // Returns the noise of each sample. `input` is the index of the input with the noise, a uint64 for each sample.
  std::vector<Noise> noise(OpKernelContext* context, int input, int64_t batch) const {
    std::vector<Noise> noise(batch);
    for (int64_t sample = 0; sample < batch; ++sample) {
      noise[sample].format = format;
      for (int salt = 0; count > 0 && salt < kSalts; ++salt) {
        noise[sample].words[salt] = word_of(salt, context->input(input).flat<tensorflow::uint64>()(sample));
      }
    }
    return noise;
  }

 private:
  template <bool proxy, Kind kind>
  Blocks blocks(const std::string& activation) const {
    return rounding == "random" ? blocks_of<proxy, AtRandom<kind>>(activation) : blocks_of<proxy, Nearest<kind>>(activation);
  }
};

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

// Checks the inputs of a norm. The first input, x, must not be empty.
inline void check_inputs(Shapes* shapes, const std::vector<const char*>& patterns) {
  for (size_t k = 0; k < patterns.size(); ++k) shapes->input(k, patterns[k]);
  shapes->require_positive("nhwc");
}

}  // namespace native

#endif  // EMULATOR_NATIVE_NORMS_H_
