// Batch norm and the following activation (Ioffe and Szegedy, arXiv 1502.03167). Training has one operation forward and one
// backward. The batch may have several parts with separate statistics. Inference has one operation.

#include "emulator/native/norms.h"

namespace native {
namespace {

// The attributes of the forward and the backward operation.
struct Norm {
  template <typename Context>
  absl::Status read(Context* context) {
    std::string activation;
    TF_RETURN_IF_ERROR(read_size(context, "parts", &parts));
    TF_RETURN_IF_ERROR(context->GetAttr("activation", &activation));
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &epsilon));
    TF_RETURN_IF_ERROR(rounding.read(context));
    blocks = rounding.blocks<false>(activation);
    return absl::OkStatus();
  }

  // `patterns` has the pattern of each input before the noise.
  void check(Shapes* shapes, const std::vector<const char*>& patterns) const {
    shapes->set('p', parts);
    check_inputs(shapes, patterns);
    rounding.check(shapes, patterns.size());
    shapes->divide('n', 's', parts);
    shapes->output(0, "nhwc");
    shapes->output(1, "pc");
    shapes->output(2, "pc");
  }

  NormRounding rounding;
  int64_t parts = 1;
  float epsilon = 0;
  Blocks blocks;
};

// Rules of the forward operation. At the end of a residual unit, a shortcut is added before the activation.
struct NormRules : Norm {
  template <typename Context>
  absl::Status read(Context* context) {
    std::string activation, rounding;
    int shortcuts;
    TF_RETURN_IF_ERROR(Norm::read(context));
    TF_RETURN_IF_ERROR(context->GetAttr("activation", &activation));
    TF_RETURN_IF_ERROR(context->GetAttr("rounding", &rounding));
    TF_RETURN_IF_ERROR(context->GetAttr("shortcuts", &shortcuts));
    shortcut = shortcuts ? 3 + this->rounding.count : 0;
    if (shortcuts == 0 || (shortcuts == 1 && activation == "relu" && rounding == "none")) return absl::OkStatus();
    return InvalidArgument("there can be one shortcut, only before a relu and without rounding");
  }

  void check(Shapes* shapes) const {
    Norm::check(shapes, {"nhwc", "c", "c"});
    if (shortcut) shapes->input(shortcut, "nhwc");
  }

  int shortcut = 0;  // index of the input with the shortcut; 0 if there is none
};

struct GradientRules : Norm {
  void check(Shapes* shapes) const { Norm::check(shapes, {"nhwc", "nhwc", "c", "c", "pc", "pc"}); }
};

// Computes y = relu(x * factor + shift + shortcut) for a block.
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

class BatchNorm : public CheckedKernel<NormRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const NormRules& norm = rules_;
    const Tensor& input = context->input(0);
    const Walk walk(input);
    const int64_t channels = walk.channels, samples = walk.batch / norm.parts;
    const float* shortcut = norm.shortcut ? numbers(context, norm.shortcut) : nullptr;
    const Reader x(input);
    const float *gamma = numbers(context, 1), *beta = numbers(context, 2);
    const TensorShape rows({norm.parts, channels});
    Tensor* output;
    float *mean, *variance;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    OP_REQUIRES_OK(context, allocate(context, {{rows, &mean}, {rows, &variance}}, 1));
    const Writer y(output);
    BlockSums block_means(walk), squares(walk);
    run(context, walk,
        [&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
          const float* from = x.read(sample * walk.sample_size() + first, pixels * channels, &Scratches::own().x);
          moments(from, pixels, channels, block_means.of(sample, block), squares.of(sample, block));
        },
        1);
    const double count = static_cast<double>(samples * walk.pixels);
    Rows factor(norm.parts, channels), shift(norm.parts, channels);
    for (int64_t part = 0; part < norm.parts; ++part) {
      const Moments own = merged(walk, part * samples, samples, block_means, squares, count,
                                 [](const std::vector<double>& sums) { return sums; });
      float *own_mean = mean + part * channels, *own_variance = variance + part * channels;
      std::vector<float> r(channels);
      for (int64_t c = 0; c < channels; ++c) {
        own_mean[c] = static_cast<float>(own.means[c]);
        own_variance[c] = static_cast<float>(own.variances[c]);
      }
      invert(channels, own_variance, norm.epsilon, r.data());
      scale(channels, gamma, beta, own_mean, r.data(), factor.of(part), shift.of(part));
    }
    const std::vector<Noise> noise = norm.rounding.noise(context, 3, walk.batch);
    run(context, walk,
        [&](int64_t sample, int64_t, int64_t first, int64_t pixels) {
          const int64_t start = sample * walk.sample_size() + first, part = sample / samples;
          const Channels rows{factor.of(part), shift.of(part)};
          const Block block{pixels, channels, static_cast<uint32_t>(first), noise[sample]};
          Scratches& scratches = Scratches::own();
          const float* from = x.read(start, pixels * channels, &scratches.x);
          float* to = y.begin(start, pixels * channels, &scratches.result);
          if (shortcut) {
            relus_of_sums(from, shortcut + start, rows, block, to);
          } else {
            norm.blocks.values(from, rows, block, to);
          }
          y.end(start, pixels * channels, scratches.result);
        },
        1);
  }
};

class BatchNormGradient : public CheckedKernel<GradientRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const GradientRules& norm = rules_;
    const Tensor& input = context->input(0);
    const Walk walk(input);
    const int64_t channels = walk.channels, samples = walk.batch / norm.parts;
    const Reader x(input), dy(context->input(1));
    const float *gamma = numbers(context, 2), *beta = numbers(context, 3), *mean = numbers(context, 4),
                *variance = numbers(context, 5);
    const TensorShape rows({norm.parts, channels});
    Tensor* output;
    float *dgamma, *dbeta;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    OP_REQUIRES_OK(context, allocate(context, {{rows, &dgamma}, {rows, &dbeta}}, 1));
    const Writer dx(output);
    Rows r(norm.parts, channels), factor(norm.parts, channels), shift(norm.parts, channels), b(norm.parts, channels),
        k(norm.parts, channels);
    for (int64_t part = 0; part < norm.parts; ++part) {
      const int64_t start = part * channels;
      invert(channels, variance + start, norm.epsilon, r.of(part));
      scale(channels, gamma, beta, mean + start, r.of(part), factor.of(part), shift.of(part));
    }
    auto channels_of = [&](int64_t part) {
      return Channels{factor.of(part), shift.of(part), mean + part * channels, b.of(part), k.of(part)};
    };
    BlockSums slopes(walk), products(walk);
    const std::vector<Noise> noise = norm.rounding.noise(context, 6, walk.batch);
    auto block_of = [&](int64_t sample, int64_t first, int64_t pixels) {
      return Block{pixels, channels, static_cast<uint32_t>(first), noise[sample]};
    };
    run(context, walk,
        [&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
          const int64_t start = sample * walk.sample_size() + first, part = sample / samples;
          Scratches& scratches = Scratches::own();
          const int64_t count = pixels * channels;
          float* to = dx.begin(start, count, &scratches.result);
          norm.blocks.sums(x.read(start, count, &scratches.x), dy.read(start, count, &scratches.dy), channels_of(part),
                            block_of(sample, first, pixels), {slopes.of(sample, block), products.of(sample, block)}, to);
          dx.end(start, count, scratches.result);
        },
        2);
    const double count = static_cast<double>(samples * walk.pixels);
    for (int64_t part = 0; part < norm.parts; ++part) {
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
          Scratches& scratches = Scratches::own();
          const int64_t count = pixels * channels;
          float* to = dx.again(start, count, &scratches.result);
          norm.blocks.gradients(x.read(start, count, &scratches.x), dy.read(start, count, &scratches.dy), channels_of(part),
                                block_of(sample, first, pixels), to);
          dx.end(start, count, scratches.result);
        },
        2);
  }
};

struct InferenceRules {
  template <typename Context>
  absl::Status read(Context* context) {
    std::string activation;
    TF_RETURN_IF_ERROR(context->GetAttr("activation", &activation));
    blocks = blocks_of<false, Exact>(activation);
    return context->GetAttr("epsilon", &epsilon);
  }

  void check(Shapes* shapes) const {
    check_inputs(shapes, {"nhwc", "c", "c", "c", "c"});
    shapes->output(0, "nhwc");
  }

  Blocks blocks;
  float epsilon = 0;
};

// Batch norm with the moving mean and variance.
class BatchNormInference : public CheckedKernel<InferenceRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t last = input.dim_size(3);
    const Walk walk(input);
    Tensor* output;  // this may be the same tensor as x, because each value is read before it is written
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, input.shape(), &output));
    const float* x = numbers(context, 0);
    float* y = output->flat<float>().data();
    std::vector<float> r(last), factor(last), shift(last);
    invert(last, numbers(context, 4), rules_.epsilon, r.data());
    scale(last, numbers(context, 1), numbers(context, 2), numbers(context, 3), r.data(), factor.data(), shift.data());
    run(context, walk,
        [&](int64_t sample, int64_t, int64_t first, int64_t pixels) {
          const int64_t start = sample * walk.sample_size() + first;
          rules_.blocks.values(x + start, {factor.data(), shift.data()}, {pixels, last}, y + start);
        },
        1);
  }
};

REGISTER_OP("EmulatorBatchNorm")
    .Input("x: T").Input("gamma: float").Input("beta: float").Input("noise: count * uint64")
    .Input("shortcut: shortcuts * float").Attr("shortcuts: int >= 0")
    .Attr("parts: int").Attr(kActivations).Attr("epsilon: float")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds).Attr("count: int >= 0")
    .Attr(kStorage)
    .Output("y: T").Output("mean: float").Output("variance: float")
    .SetShapeFn(set_shapes<NormRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorBatchNorm").Device(tensorflow::DEVICE_CPU), BatchNorm);

REGISTER_OP("EmulatorBatchNormGradient")
    .Input("x: T").Input("dy: U").Input("gamma: float").Input("beta: float").Input("mean: float")
    .Input("variance: float").Input("noise: count * uint64")
    .Attr("parts: int").Attr(kActivations).Attr("epsilon: float")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds).Attr("count: int >= 0")
    .Attr(kStorage).Attr(kArrivingStorage).Attr(kReturnedStorage)
    .Output("dx: V").Output("dgamma: float").Output("dbeta: float")
    .SetShapeFn(set_shapes<GradientRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorBatchNormGradient").Device(tensorflow::DEVICE_CPU), BatchNormGradient);

REGISTER_OP("EmulatorBatchNormInference")
    .Input("x: float").Input("gamma: float").Input("beta: float").Input("mean: float").Input("variance: float")
    .Attr(kActivations).Attr("epsilon: float")
    .Output("y: float")
    .SetShapeFn(set_shapes<InferenceRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorBatchNormInference").Device(tensorflow::DEVICE_CPU), BatchNormInference);

}  // namespace
}  // namespace native
