// Group norm and the activation after it, forward and backward, one operation each. The formulas are those of
// emulator/layers/fused.py, which computes the same where these kernels are not there.

#include <cmath>

#include "emulator/kernels/blocks.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace kernels {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;
using tensorflow::shape_inference::InferenceContext;

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

template <Activation kind>
void values(const float* __restrict x, const float* __restrict factor, const float* __restrict shift, int64_t pixels,
            int64_t channels, float* __restrict y) {
  for (int64_t p = 0; p < pixels; ++p, x += channels, y += channels) {
    for (int64_t c = 0; c < channels; ++c) y[c] = activated<kind>(x[c] * factor[c] + shift[c]);
  }
}

// dz = dy * activation'(z), and its sums and those of dz * (x - mean).
template <Activation kind>
void slopes(const float* __restrict x, const float* __restrict dy, const float* __restrict factor,
            const float* __restrict shift, const float* __restrict mean, int64_t pixels, int64_t channels,
            float* __restrict dz, float* __restrict sums, float* __restrict products) {
  std::fill(sums, sums + channels, 0.0f);
  std::fill(products, products + channels, 0.0f);
  for (int64_t p = 0; p < pixels; ++p, x += channels, dy += channels, dz += channels) {
    for (int64_t c = 0; c < channels; ++c) {
      const float slope = activation_gradient<kind>(x[c] * factor[c] + shift[c], dy[c]);
      dz[c] = slope;
      sums[c] += slope;
      products[c] += slope * (x[c] - mean[c]);
    }
  }
}

// dx = dz * a + (x - mean) * b + k, where dx holds dz before.
void input_gradients(const float* __restrict x, const float* __restrict mean, const float* __restrict a,
                     const float* __restrict b, const float* __restrict k, int64_t pixels, int64_t channels,
                     float* __restrict dx) {
  for (int64_t p = 0; p < pixels; ++p, x += channels, dx += channels) {
    for (int64_t c = 0; c < channels; ++c) dx[c] = dx[c] * a[c] + (x[c] - mean[c]) * b[c] + k[c];
  }
}

using Values = decltype(&values<Activation::kLinear>);
using Slopes = decltype(&slopes<Activation::kLinear>);

// A row of channels for every sample.
class Rows {
 public:
  explicit Rows(const Walk& walk) : channels_(walk.channels), values_(walk.batch * walk.channels) {}
  float* of(int64_t sample) { return &values_[sample * channels_]; }

 private:
  int64_t channels_;
  std::vector<float> values_;
};

// The attributes of both directions.
struct Norm {
  explicit Norm(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("groups", &groups));
    OP_REQUIRES_OK(construction, construction->GetAttr("contiguous", &contiguous));
    std::string activation;
    OP_REQUIRES_OK(construction, construction->GetAttr("activation", &activation));
    if (activation == "relu") {
      choose<Activation::kRelu>();
    } else if (activation == "relu6") {
      choose<Activation::kRelu6>();
    } else if (activation == "swish") {
      choose<Activation::kSwish>();
    } else {
      choose<Activation::kLinear>();
    }
  }

  template <Activation kind>
  void choose() {
    values_of_block = &values<kind>;
    slopes_of_block = &slopes<kind>;
  }

  void check(OpKernelContext* context) const {
    const Tensor& x = context->input(0);
    OP_REQUIRES(context, x.dims() == 4 && x.NumElements() > 0, InvalidArgument("a norm's input has 4 dimensions"));
    OP_REQUIRES(context, groups > 0 && x.dim_size(3) % groups == 0,
                InvalidArgument(x.dim_size(3), " channels do not divide into ", groups, " groups"));
  }

  // The mean of each channel's group over its pixels, at every channel, from sums over the pixels.
  void mean(const Walk& walk, const float* sums, float* means) const {
    const int64_t size = walk.channels / groups;
    std::vector<double> totals(groups, 0.0);
    for (int64_t c = 0; c < walk.channels; ++c) totals[group(c, size)] += sums[c];
    for (int64_t c = 0; c < walk.channels; ++c) {
      means[c] = static_cast<float>(totals[group(c, size)] / (static_cast<double>(size) * walk.pixels));
    }
  }

  int64_t group(int64_t channel, int64_t size) const { return contiguous ? channel / size : channel % groups; }

  int64_t groups = 1;
  bool contiguous = false;
  Values values_of_block = nullptr;
  Slopes slopes_of_block = nullptr;
};

// factor = r * gamma and shift = beta - mean * factor, so that z = x * factor + shift.
void scale(int64_t channels, const float* gamma, const float* beta, const float* mean, const float* r, float* factor,
           float* shift) {
  for (int64_t c = 0; c < channels; ++c) {
    factor[c] = r[c] * gamma[c];
    shift[c] = beta[c] - mean[c] * factor[c];
  }
}

bool wrong_size(const Tensor& tensor, int64_t size) { return tensor.NumElements() != size; }

class GroupNorm : public OpKernel {
 public:
  explicit GroupNorm(OpKernelConstruction* construction) : OpKernel(construction), norm_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES_OK(construction, construction->GetAttr("two_pass", &two_pass_));
  }

  void Compute(OpKernelContext* context) override {
    norm_.check(context);
    if (!context->status().ok()) return;
    const Tensor& input = context->input(0);
    const Walk walk(input);
    const int64_t channels = walk.channels;
    for (int k : {1, 2}) {
      OP_REQUIRES(context, !wrong_size(context->input(k), channels), InvalidArgument("gamma and beta have the channels"));
    }
    Tensor *output, *means, *inverses;
    const TensorShape rows({walk.batch, 1, 1, channels});
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    OP_REQUIRES_OK(context, context->allocate_output(1, rows, &means));
    OP_REQUIRES_OK(context, context->allocate_output(2, rows, &inverses));
    const float *x = input.flat<float>().data(), *gamma = context->input(1).flat<float>().data(),
                *beta = context->input(2).flat<float>().data();
    float *y = output->flat<float>().data(), *mean = means->flat<float>().data(), *r = inverses->flat<float>().data();
    BlockSums sums(walk), squares(walk);
    Rows factor(walk), shift(walk);

    auto at = [&](const float* tensor, int64_t sample, int64_t first) { return tensor + sample * walk.sample_size() + first; };
    auto finish = [&](int64_t sample) {  // r holds the variance
      float* own = r + sample * channels;
      for (int64_t c = 0; c < channels; ++c) own[c] = 1.0f / std::sqrt(own[c] + epsilon_);
      scale(channels, gamma, beta, mean + sample * channels, own, factor.of(sample), shift.of(sample));
    };
    auto set_mean = [&](int64_t sample) {
      float* own = mean + sample * channels;
      sums.total(sample, own);
      norm_.mean(walk, own, own);
    };
    auto set_variance = [&](int64_t sample) {  // or the mean square
      float* own = r + sample * channels;
      squares.total(sample, own);
      norm_.mean(walk, own, own);
    };
    std::vector<Phase> phases;
    phases.push_back({[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
                        const float* from = at(x, sample, first);
                        sum_pixels(from, pixels, channels, sums.of(sample, block), [](float v, int64_t) { return v; });
                        if (two_pass_) return;
                        sum_pixels(from, pixels, channels, squares.of(sample, block), [](float v, int64_t) { return v * v; });
                      },
                      [&](int64_t sample) {
                        set_mean(sample);
                        if (two_pass_) return;
                        set_variance(sample);
                        float *square = r + sample * channels, *own = mean + sample * channels;
                        for (int64_t c = 0; c < channels; ++c) square[c] = std::max(square[c] - own[c] * own[c], 0.0f);
                        finish(sample);
                      }});
    if (two_pass_) {
      phases.push_back({[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
                          const float* own = mean + sample * channels;
                          sum_pixels(at(x, sample, first), pixels, channels, squares.of(sample, block),
                                     [own](float v, int64_t c) { return (v - own[c]) * (v - own[c]); });
                        },
                        [&](int64_t sample) {
                          set_variance(sample);
                          finish(sample);
                        }});
    }
    phases.push_back({[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
                        norm_.values_of_block(at(x, sample, first), factor.of(sample), shift.of(sample), pixels, channels,
                                              y + sample * walk.sample_size() + first);
                      },
                      nullptr});
    run(context, walk, phases, 2);
  }

 private:
  const Norm norm_;
  float epsilon_ = 0;
  bool two_pass_ = false;
};

class GroupNormGradient : public OpKernel {
 public:
  explicit GroupNormGradient(OpKernelConstruction* construction) : OpKernel(construction), norm_(construction) {}

  void Compute(OpKernelContext* context) override {
    norm_.check(context);
    if (!context->status().ok()) return;
    const Tensor& input = context->input(0);
    const Walk walk(input);
    const int64_t channels = walk.channels;
    const int64_t sizes[] = {input.NumElements(), input.NumElements(), channels, channels, walk.batch * channels,
                             walk.batch * channels};
    for (int k = 0; k < 6; ++k) {
      OP_REQUIRES(context, !wrong_size(context->input(k), sizes[k]), InvalidArgument("input ", k, " has another shape"));
    }
    Tensor *of_input, *of_gamma, *of_beta;
    const TensorShape rows({walk.batch, channels});
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &of_input));
    OP_REQUIRES_OK(context, context->allocate_output(1, rows, &of_gamma));
    OP_REQUIRES_OK(context, context->allocate_output(2, rows, &of_beta));
    auto data = [&](int k) { return context->input(k).flat<float>().data(); };
    const float *x = data(0), *dy = data(1), *gamma = data(2), *beta = data(3), *mean = data(4), *r = data(5);
    float *dx = of_input->flat<float>().data(), *dgamma = of_gamma->flat<float>().data(),
          *dbeta = of_beta->flat<float>().data();
    BlockSums sums(walk), products(walk);
    Rows factor(walk), shift(walk), of_deviation(walk), of_mean(walk);
    for (int64_t sample = 0; sample < walk.batch; ++sample) {
      scale(channels, gamma, beta, mean + sample * channels, r + sample * channels, factor.of(sample), shift.of(sample));
    }
    const std::vector<Phase> phases = {
        {[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
           const int64_t start = sample * walk.sample_size() + first;
           norm_.slopes_of_block(x + start, dy + start, factor.of(sample), shift.of(sample), mean + sample * channels, pixels,
                                 channels, dx + start, sums.of(sample, block), products.of(sample, block));
         },
         [&](int64_t sample) {
           float *db = dbeta + sample * channels, *dg = dgamma + sample * channels, *b = of_deviation.of(sample),
                 *k = of_mean.of(sample);
           const float *a = factor.of(sample), *inverse = r + sample * channels;
           sums.total(sample, db);
           products.total(sample, dg);
           for (int64_t c = 0; c < channels; ++c) {
             k[c] = gamma[c] * db[c];
             b[c] = a[c] * dg[c];
           }
           norm_.mean(walk, k, k);
           norm_.mean(walk, b, b);
           for (int64_t c = 0; c < channels; ++c) {
             k[c] *= -inverse[c];
             b[c] *= -(inverse[c] * inverse[c]);
             dg[c] *= inverse[c];
           }
         }},
        {[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
           const int64_t start = sample * walk.sample_size() + first;
           input_gradients(x + start, mean + sample * channels, factor.of(sample), of_deviation.of(sample),
                           of_mean.of(sample), pixels, channels, dx + start);
         },
         nullptr}};
    run(context, walk, phases, 3);
  }

 private:
  const Norm norm_;
};

tensorflow::Status same_as_input(InferenceContext* context) {
  context->set_output(0, context->input(0));
  return tensorflow::OkStatus();
}

REGISTER_OP("EmulatorGroupNorm")
    .Input("x: float").Input("gamma: float").Input("beta: float")
    .Attr("groups: int").Attr("contiguous: bool").Attr("activation: string")
    .Attr("epsilon: float").Attr("two_pass: bool")
    .Output("y: float").Output("mean: float").Output("inverse_deviation: float")
    .SetShapeFn([](InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &x));
      const auto one = context->MakeDim(1);
      const auto row = context->MakeShape({context->Dim(x, 0), one, one, context->Dim(x, 3)});
      context->set_output(1, row);
      context->set_output(2, row);
      return same_as_input(context);
    });
REGISTER_KERNEL_BUILDER(Name("EmulatorGroupNorm").Device(tensorflow::DEVICE_CPU), GroupNorm);

REGISTER_OP("EmulatorGroupNormGradient")
    .Input("x: float").Input("dy: float").Input("gamma: float").Input("beta: float").Input("mean: float")
    .Input("inverse_deviation: float")
    .Attr("groups: int").Attr("contiguous: bool").Attr("activation: string")
    .Output("dx: float").Output("dgamma: float").Output("dbeta: float")
    .SetShapeFn([](InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &x));
      const auto row = context->MakeShape({context->Dim(x, 0), context->Dim(x, 3)});
      context->set_output(1, row);
      context->set_output(2, row);
      return same_as_input(context);
    });
REGISTER_KERNEL_BUILDER(Name("EmulatorGroupNormGradient").Device(tensorflow::DEVICE_CPU), GroupNormGradient);

}  // namespace
}  // namespace kernels
