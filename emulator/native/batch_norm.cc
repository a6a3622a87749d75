// Batch norm and the activation after it: training's, forward and backward, one operation each, where the batch may be of
// several parts whose statistics are kept apart; and inference's (Ioffe and Szegedy, arXiv 1502.03167).

#include "emulator/native/norms.h"

namespace native {
namespace {

// The attributes of both directions.
struct Norm {
  explicit Norm(OpKernelConstruction* construction) : rounding(construction) {
    std::string activation;
    OP_REQUIRES_OK(construction, construction->GetAttr("parts", &parts));
    OP_REQUIRES_OK(construction, construction->GetAttr("activation", &activation));
    blocks = rounding.blocks<false>(activation);
  }

  // `sizes`: of the inputs after x and before the noise.
  void check(OpKernelContext* context, const std::vector<int64_t>& sizes) const {
    check_sizes(context, sizes);
    if (!context->status().ok()) return;
    rounding.check(context, sizes.size() + 1, context->input(0).dim_size(0));
    if (!context->status().ok()) return;
    OP_REQUIRES(context, parts > 0 && context->input(0).dim_size(0) % parts == 0,
                InvalidArgument(context->input(0).dim_size(0), " samples do not divide into ", parts, " parts"));
  }

  NormRounding rounding;
  int64_t parts = 1;
  Blocks blocks;
};

// y = relu(x * factor + shift + shortcut) of a block.
void relus_of_sums(const float* __restrict x, const float* __restrict shortcut, const Channels& rows, const Block& block,
                   float* __restrict y) {
  const float *factor = rows.factor, *shift = rows.shift;
  const int64_t channels = block.channels;
  for (int64_t p = 0; p < block.pixels; ++p, x += channels, shortcut += channels, y += channels) {
#pragma GCC ivdep
    for (int32_t c = 0; c < static_cast<int32_t>(channels); ++c) {
      y[c] = activated<Activation::kRelu>(x[c] * factor[c] + shift[c] + shortcut[c]);
    }
  }
}

// With a shortcut, to which the norm is added before the activation: a residual unit's end.
class BatchNorm : public OpKernel {
 public:
  explicit BatchNorm(OpKernelConstruction* construction) : OpKernel(construction), norm_(construction) {
    std::string activation, rounding;
    int count, shortcuts;
    OP_REQUIRES_OK(construction, construction->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES_OK(construction, construction->GetAttr("activation", &activation));
    OP_REQUIRES_OK(construction, construction->GetAttr("rounding", &rounding));
    OP_REQUIRES_OK(construction, construction->GetAttr("count", &count));
    OP_REQUIRES_OK(construction, construction->GetAttr("shortcuts", &shortcuts));
    OP_REQUIRES(construction, shortcuts == 0 || (shortcuts == 1 && activation == "relu" && rounding == "none"),
                InvalidArgument("one shortcut, before a relu, and nothing is rounded"));
    shortcut_ = shortcuts ? 3 + count : 0;
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t last = input.dims() == 4 ? input.dim_size(3) : 0;
    norm_.check(context, {last, last});
    if (!context->status().ok()) return;
    const Walk walk(input);
    const int64_t channels = walk.channels, samples = walk.batch / norm_.parts;
    const float* shortcut = nullptr;
    if (shortcut_) {
      OP_REQUIRES(context, context->input(shortcut_).shape() == input.shape(), InvalidArgument("a shortcut has the shape of x"));
      shortcut = context->input(shortcut_).flat<float>().data();
    }
    Tensor *output, *means, *variances;
    const TensorShape rows({norm_.parts, channels});
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    OP_REQUIRES_OK(context, context->allocate_output(1, rows, &means));
    OP_REQUIRES_OK(context, context->allocate_output(2, rows, &variances));
    const float *x = input.flat<float>().data(), *gamma = context->input(1).flat<float>().data(),
                *beta = context->input(2).flat<float>().data();
    float *y = output->flat<float>().data(), *mean = means->flat<float>().data(),
          *variance = variances->flat<float>().data();
    BlockSums block_means(walk), squares(walk);
    run(context, walk,
        [&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
          moments(x + sample * walk.sample_size() + first, pixels, channels, block_means.of(sample, block),
                  squares.of(sample, block));
        },
        1);
    const double count = static_cast<double>(samples * walk.pixels);
    Rows factor(norm_.parts, channels), shift(norm_.parts, channels);
    for (int64_t part = 0; part < norm_.parts; ++part) {
      const Moments own = merged(walk, part * samples, samples, block_means, squares, count,
                                 [](const std::vector<double>& sums) { return sums; });
      float *own_mean = mean + part * channels, *own_variance = variance + part * channels;
      std::vector<float> r(channels);
      for (int64_t c = 0; c < channels; ++c) {
        own_mean[c] = static_cast<float>(own.means[c]);
        own_variance[c] = static_cast<float>(own.variances[c]);
        r[c] = 1.0f / std::sqrt(own_variance[c] + epsilon_);
      }
      scale(channels, gamma, beta, own_mean, r.data(), factor.of(part), shift.of(part));
    }
    const std::vector<Noise> noise = norm_.rounding.noise(context, 3, walk.batch);
    run(context, walk,
        [&](int64_t sample, int64_t, int64_t first, int64_t pixels) {
          const int64_t start = sample * walk.sample_size() + first, part = sample / samples;
          const Channels rows{factor.of(part), shift.of(part)};
          const Block block{pixels, channels, static_cast<uint32_t>(first), noise[sample]};
          if (shortcut) return relus_of_sums(x + start, shortcut + start, rows, block, y + start);
          norm_.blocks.values(x + start, rows, block, y + start);
        },
        1);
  }

 private:
  const Norm norm_;
  float epsilon_ = 0;
  int shortcut_ = 0;  // the number of the input, if there is one
};

class BatchNormGradient : public OpKernel {
 public:
  explicit BatchNormGradient(OpKernelConstruction* construction) : OpKernel(construction), norm_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t last = input.dims() == 4 ? input.dim_size(3) : 0;
    norm_.check(context, {input.NumElements(), last, last, norm_.parts * last, norm_.parts * last});
    if (!context->status().ok()) return;
    const Walk walk(input);
    const int64_t channels = walk.channels, samples = walk.batch / norm_.parts;
    Tensor *of_input, *of_gamma, *of_beta;
    const TensorShape rows({norm_.parts, channels});
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &of_input));
    OP_REQUIRES_OK(context, context->allocate_output(1, rows, &of_gamma));
    OP_REQUIRES_OK(context, context->allocate_output(2, rows, &of_beta));
    auto data = [&](int k) { return context->input(k).flat<float>().data(); };
    const float *x = data(0), *dy = data(1), *gamma = data(2), *beta = data(3), *mean = data(4), *variance = data(5);
    float *dx = of_input->flat<float>().data(), *dgamma = of_gamma->flat<float>().data(),
          *dbeta = of_beta->flat<float>().data();
    Rows r(norm_.parts, channels), factor(norm_.parts, channels), shift(norm_.parts, channels), b(norm_.parts, channels),
        k(norm_.parts, channels);
    for (int64_t part = 0; part < norm_.parts; ++part) {
      for (int64_t c = 0; c < channels; ++c) r.of(part)[c] = 1.0f / std::sqrt(variance[part * channels + c] + epsilon_);
      scale(channels, gamma, beta, mean + part * channels, r.of(part), factor.of(part), shift.of(part));
    }
    auto channels_of = [&](int64_t part) {
      return Channels{factor.of(part), shift.of(part), mean + part * channels, b.of(part), k.of(part)};
    };
    BlockSums slopes(walk), products(walk);
    const std::vector<Noise> noise = norm_.rounding.noise(context, 6, walk.batch);
    auto block_of = [&](int64_t sample, int64_t first, int64_t pixels) {
      return Block{pixels, channels, static_cast<uint32_t>(first), noise[sample]};
    };
    run(context, walk,
        [&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
          const int64_t start = sample * walk.sample_size() + first, part = sample / samples;
          norm_.blocks.sums(x + start, dy + start, channels_of(part), block_of(sample, first, pixels),
                            {slopes.of(sample, block), products.of(sample, block)}, dx + start);
        },
        2);
    const double count = static_cast<double>(samples * walk.pixels);
    for (int64_t part = 0; part < norm_.parts; ++part) {
      const std::vector<double> of_mean = slopes.total(part * samples, samples),
                                of_deviation = products.total(part * samples, samples);
      for (int64_t c = 0; c < channels; ++c) {
        const float inverse = r.of(part)[c], own_factor = factor.of(part)[c];
        dbeta[part * channels + c] = static_cast<float>(of_mean[c]);
        dgamma[part * channels + c] = static_cast<float>(of_deviation[c] * inverse);
        b.of(part)[c] = static_cast<float>(-own_factor * inverse * inverse * of_deviation[c] / count);
        k.of(part)[c] = static_cast<float>(-own_factor * of_mean[c] / count);
      }
    }
    run(context, walk,
        [&](int64_t sample, int64_t, int64_t first, int64_t pixels) {
          const int64_t start = sample * walk.sample_size() + first, part = sample / samples;
          norm_.blocks.gradients(x + start, dy + start, channels_of(part), block_of(sample, first, pixels), dx + start);
        },
        2);
  }

 private:
  const Norm norm_;
  float epsilon_ = 0;
};

// With the moving mean and variance.
class BatchNormInference : public OpKernel {
 public:
  explicit BatchNormInference(OpKernelConstruction* construction) : OpKernel(construction) {
    std::string activation;
    OP_REQUIRES_OK(construction, construction->GetAttr("activation", &activation));
    OP_REQUIRES_OK(construction, construction->GetAttr("epsilon", &epsilon_));
    blocks_ = blocks_of<false, Exact>(activation);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t last = input.dims() == 4 ? input.dim_size(3) : 0;
    check_sizes(context, {last, last, last, last});
    if (!context->status().ok()) return;
    const Walk walk(input);
    Tensor* output;  // x itself where nothing else reads it: a value is read before it is written
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, input.shape(), &output));
    auto data = [&](int k) { return context->input(k).flat<float>().data(); };
    const float *x = data(0), *gamma = data(1), *beta = data(2), *mean = data(3), *variance = data(4);
    float* y = output->flat<float>().data();
    std::vector<float> r(last), factor(last), shift(last);
    for (int64_t c = 0; c < last; ++c) r[c] = 1.0f / std::sqrt(variance[c] + epsilon_);
    scale(last, gamma, beta, mean, r.data(), factor.data(), shift.data());
    run(context, walk,
        [&](int64_t sample, int64_t, int64_t first, int64_t pixels) {
          const int64_t start = sample * walk.sample_size() + first;
          blocks_.values(x + start, {factor.data(), shift.data()}, {pixels, last}, y + start);
        },
        1);
  }

 private:
  Blocks blocks_;
  float epsilon_ = 0;
};

REGISTER_OP("EmulatorBatchNorm")
    .Input("x: float").Input("gamma: float").Input("beta: float").Input("noise: count * uint64")
    .Input("shortcut: shortcuts * float").Attr("shortcuts: int >= 0")
    .Attr("parts: int").Attr("activation: string").Attr("epsilon: float")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds).Attr("count: int >= 0")
    .Output("y: float").Output("mean: float").Output("variance: float")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      tensorflow::int64 parts;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &x));
      TF_RETURN_IF_ERROR(context->GetAttr("parts", &parts));
      const auto row = context->MakeShape({context->MakeDim(parts), context->Dim(x, 3)});
      context->set_output(0, x);
      context->set_output(1, row);
      context->set_output(2, row);
      return tensorflow::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("EmulatorBatchNorm").Device(tensorflow::DEVICE_CPU), BatchNorm);

REGISTER_OP("EmulatorBatchNormGradient")
    .Input("x: float").Input("dy: float").Input("gamma: float").Input("beta: float").Input("mean: float")
    .Input("variance: float").Input("noise: count * uint64")
    .Attr("parts: int").Attr("activation: string").Attr("epsilon: float")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds).Attr("count: int >= 0")
    .Output("dx: float").Output("dgamma: float").Output("dbeta: float")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &x));
      context->set_output(0, x);
      context->set_output(1, context->input(4));
      context->set_output(2, context->input(4));
      return tensorflow::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("EmulatorBatchNormGradient").Device(tensorflow::DEVICE_CPU), BatchNormGradient);

REGISTER_OP("EmulatorBatchNormInference")
    .Input("x: float").Input("gamma: float").Input("beta: float").Input("mean: float").Input("variance: float")
    .Attr("activation: string").Attr("epsilon: float")
    .Output("y: float")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      return tensorflow::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("EmulatorBatchNormInference").Device(tensorflow::DEVICE_CPU), BatchNormInference);

}  // namespace
}  // namespace native
