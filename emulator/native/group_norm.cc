// Group norm and the following activation, with or without proxy norm's correction. There is one operation forward and one
// backward. emulator/layers/group_norm.py computes the same formulas without native kernels.
//
// The inputs `centre` and `outer` belong to proxy norm: the mean of the proxy and the factor of y. They are empty without
// proxy norm. In half precision, the normalised value, the activation and their gradients are rounded separately.

#include "emulator/native/norms.h"

namespace native {
namespace {

// The attributes of the forward and the backward operation.
struct Norm {
  template <typename Context>
  absl::Status read(Context* context) {
    std::string activation;
    TF_RETURN_IF_ERROR(read_size(context, "groups", &groups));
    TF_RETURN_IF_ERROR(context->GetAttr("contiguous", &contiguous));
    TF_RETURN_IF_ERROR(context->GetAttr("activation", &activation));
    TF_RETURN_IF_ERROR(context->GetAttr("proxy", &proxy));
    TF_RETURN_IF_ERROR(rounding.read(context));
    blocks = proxy ? rounding.blocks<true>(activation) : rounding.blocks<false>(activation);
    return absl::OkStatus();
  }

  // `patterns` has the pattern of each input before the inputs for proxy norm.
  void check(Shapes* shapes, std::vector<const char*> patterns) const {
    for (int k = 0; k < 2; ++k) patterns.push_back(proxy ? "c" : "0");
    check_inputs(shapes, patterns);
    rounding.check(shapes, patterns.size());
    shapes->divide('c', 's', groups);
    shapes->output(0, "nhwc");
  }

  // Adds up the values of all channels of a group, and returns the sum for each channel.
  std::vector<double> group_sums(const std::vector<double>& sums) const {
    const int64_t channels = sums.size(), size = channels / groups;
    auto group = [&](int64_t channel) { return contiguous ? channel / size : channel % groups; };
    std::vector<double> totals(groups, 0.0), spread(channels);
    for (int64_t c = 0; c < channels; ++c) totals[group(c)] += sums[c];
    for (int64_t c = 0; c < channels; ++c) spread[c] = totals[group(c)];
    return spread;
  }

  // Returns how many values are normalised together: the values of a sample in a group.
  double group_size(const Walk& walk) const { return static_cast<double>(walk.sample_size() / groups); }

  NormRounding rounding;
  int64_t groups = 1;
  bool contiguous = false, proxy = false;
  Blocks blocks;
};

struct NormRules : Norm {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(Norm::read(context));
    TF_RETURN_IF_ERROR(context->GetAttr("epsilon", &epsilon));
    return context->GetAttr("two_pass", &two_pass);
  }

  void check(Shapes* shapes) const {
    Norm::check(shapes, {"nhwc", "c", "c"});
    shapes->output(1, "n11c");
    shapes->output(2, "n11c");
  }

  float epsilon = 0;
  bool two_pass = false;
};

struct GradientRules : Norm {
  void check(Shapes* shapes) const {
    Norm::check(shapes, {"nhwc", "nhwc", "c", "c", "n11c", "n11c"});
    for (int k = 1; k < 5; ++k) shapes->output(k, k < 3 || proxy ? "nc" : "0c");
  }
};

class GroupNorm : public CheckedKernel<NormRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Walk walk(input);
    const int64_t channels = walk.channels;
    const Reader x(input);
    const float *gamma = numbers(context, 1), *beta = numbers(context, 2), *centre = numbers(context, 3),
                *outer = numbers(context, 4);
    const TensorShape rows({walk.batch, 1, 1, channels});
    Tensor* output;
    float *mean, *r;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    OP_REQUIRES_OK(context, allocate(context, {{rows, &mean}, {rows, &r}}, 1));
    const Writer y(output);
    BlockSums first_moments(walk), second_moments(walk);
    Rows factor(walk.batch, channels), shift(walk.batch, channels);
    const std::vector<Noise> noise = rules_.rounding.noise(context, 5, walk.batch);

    const std::vector<Phase> phases = {
        {[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
           const float* from = x.read(sample * walk.sample_size() + first, pixels * channels, &Scratches::own().x);
           float *sums = first_moments.of(sample, block), *squares = second_moments.of(sample, block);
           if (rules_.two_pass) {
             moments(from, pixels, channels, sums, squares);
           } else {
             sum_pixels(from, pixels, channels, sums, [](float v, int64_t) { return v; });
             sum_pixels(from, pixels, channels, squares, [](float v, int64_t) { return v * v; });
           }
         },
         [&](int64_t sample) {
           float *own_mean = mean + sample * channels, *own_r = r + sample * channels;
           if (rules_.two_pass) {
             set_two_pass(walk, sample, first_moments, second_moments, own_mean, own_r);
           } else {
             set_one_pass(walk, sample, first_moments, second_moments, own_mean, own_r);
           }
           scale(channels, gamma, beta, own_mean, own_r, factor.of(sample), shift.of(sample));
         }},
        {[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
           const int64_t start = sample * walk.sample_size() + first;
           Channels rows{factor.of(sample), shift.of(sample)};
           rows.centre = centre;
           rows.outer = outer;
           Scratches& scratches = Scratches::own();
           const float* from = x.read(start, pixels * channels, &scratches.x);
           float* to = y.begin(start, pixels * channels, &scratches.result);
           rules_.blocks.values(from, rows, {pixels, channels, static_cast<uint32_t>(first), noise[sample]}, to);
           y.end(start, pixels * channels, scratches.result);
         },
         nullptr}};
    run(context, walk, phases, 2);
  }

 private:
  void set_two_pass(const Walk& walk, int64_t sample, const BlockSums& means, const BlockSums& squares, float* mean,
                    float* r) const {
    const Moments moments = merged(walk, sample, 1, means, squares, rules_.group_size(walk),
                                   [this](const std::vector<double>& sums) { return rules_.group_sums(sums); });
    for (int64_t c = 0; c < walk.channels; ++c) {
      mean[c] = static_cast<float>(moments.means[c]);
      r[c] = 1.0f / std::sqrt(static_cast<float>(moments.variances[c]) + rules_.epsilon);
    }
  }

  // Computes variance = (mean of x^2) - mean^2, in FP32.
  void set_one_pass(const Walk& walk, int64_t sample, const BlockSums& sums, const BlockSums& squares, float* mean,
                    float* r) const {
    const double size = rules_.group_size(walk);
    const std::vector<double> first = rules_.group_sums(sums.total(sample)), second = rules_.group_sums(squares.total(sample));
    for (int64_t c = 0; c < walk.channels; ++c) {
      mean[c] = static_cast<float>(first[c] / size);
      const float variance = static_cast<float>(second[c] / size) - mean[c] * mean[c];
      r[c] = 1.0f / std::sqrt(std::max(variance, 0.0f) + rules_.epsilon);
    }
  }
};

class GroupNormGradient : public CheckedKernel<GradientRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Walk walk(input);
    const int64_t channels = walk.channels;
    const Reader x(input), dy(context->input(1));
    const float *gamma = numbers(context, 2), *beta = numbers(context, 3), *mean = numbers(context, 4),
                *r = numbers(context, 5), *centre = numbers(context, 6), *outer = numbers(context, 7);
    const TensorShape rows({walk.batch, channels}), proxy_rows({rules_.proxy ? walk.batch : 0, channels});
    Tensor* output;
    float *dgamma, *dbeta, *dcentre, *douter;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    OP_REQUIRES_OK(context, allocate(context, {{rows, &dgamma}, {rows, &dbeta}, {proxy_rows, &dcentre}, {proxy_rows, &douter}}, 1));
    const Writer dx(output);
    BlockSums slopes(walk), products(walk), arriving(rules_.proxy ? walk : Walk()), scaled(rules_.proxy ? walk : Walk());
    Rows factor(walk.batch, channels), shift(walk.batch, channels), b(walk.batch, channels), k(walk.batch, channels);
    for (int64_t sample = 0; sample < walk.batch; ++sample) {
      scale(channels, gamma, beta, mean + sample * channels, r + sample * channels, factor.of(sample), shift.of(sample));
    }
    auto channels_of = [&](int64_t sample) {
      return Channels{factor.of(sample), shift.of(sample), mean + sample * channels, b.of(sample), k.of(sample), centre, outer};
    };
    const std::vector<Noise> noise = rules_.rounding.noise(context, 8, walk.batch);
    auto block_of = [&](int64_t sample, int64_t first, int64_t pixels) {
      return Block{pixels, channels, static_cast<uint32_t>(first), noise[sample]};
    };
    const std::vector<Phase> phases = {
        {[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
           const int64_t start = sample * walk.sample_size() + first;
           Sums sums{slopes.of(sample, block), products.of(sample, block)};
           if (rules_.proxy) {
             sums.arriving = arriving.of(sample, block);
             sums.scaled = scaled.of(sample, block);
           }
           Scratches& scratches = Scratches::own();
           const int64_t count = pixels * channels;
           float* to = dx.begin(start, count, &scratches.result);
           rules_.blocks.sums(x.read(start, count, &scratches.x), dy.read(start, count, &scratches.dy), channels_of(sample),
                              block_of(sample, first, pixels), sums, to);
           dx.end(start, count, scratches.result);
         },
         [&](int64_t sample) {
           const float *inverse = r + sample * channels, *own_factor = factor.of(sample);
           std::vector<double> of_mean = slopes.total(sample), of_deviation = products.total(sample);
           for (int64_t c = 0; c < channels; ++c) {
             dbeta[sample * channels + c] = static_cast<float>(of_mean[c]);
             dgamma[sample * channels + c] = static_cast<float>(of_deviation[c] * inverse[c]);
             of_mean[c] *= gamma[c];
             of_deviation[c] *= own_factor[c];
           }
           of_mean = rules_.group_sums(of_mean);
           of_deviation = rules_.group_sums(of_deviation);
           const double size = rules_.group_size(walk);
           for (int64_t c = 0; c < channels; ++c) {
             b.of(sample)[c] = static_cast<float>(-inverse[c] * inverse[c] * of_deviation[c] / size);
             k.of(sample)[c] = static_cast<float>(-inverse[c] * of_mean[c] / size);
           }
           if (!rules_.proxy) return;
           const std::vector<double> all_arriving = arriving.total(sample), all_scaled = scaled.total(sample);
           for (int64_t c = 0; c < channels; ++c) {
             dcentre[sample * channels + c] = static_cast<float>(-outer[c] * all_arriving[c]);
             douter[sample * channels + c] = static_cast<float>(all_scaled[c]);
           }
         }},
        {[&](int64_t sample, int64_t block, int64_t first, int64_t pixels) {
           const int64_t start = sample * walk.sample_size() + first;
           Scratches& scratches = Scratches::own();
           const int64_t count = pixels * channels;
           float* to = dx.again(start, count, &scratches.result);
           rules_.blocks.gradients(x.read(start, count, &scratches.x), dy.read(start, count, &scratches.dy),
                                   channels_of(sample), block_of(sample, first, pixels), to);
           dx.end(start, count, scratches.result);
         },
         nullptr}};
    run(context, walk, phases, 3);
  }
};

REGISTER_OP("EmulatorGroupNorm")
    .Input("x: T").Input("gamma: float").Input("beta: float").Input("centre: float").Input("outer: float")
    .Input("noise: count * uint64")
    .Attr("proxy: bool").Attr("groups: int").Attr("contiguous: bool").Attr(kActivations)
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds).Attr("count: int >= 0")
    .Attr("epsilon: float").Attr("two_pass: bool")
    .Attr(kStorage)
    .Output("y: T").Output("mean: float").Output("inverse_deviation: float")
    .SetShapeFn(set_shapes<NormRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorGroupNorm").Device(tensorflow::DEVICE_CPU), GroupNorm);

REGISTER_OP("EmulatorGroupNormGradient")
    .Input("x: T").Input("dy: U").Input("gamma: float").Input("beta: float").Input("mean: float")
    .Input("inverse_deviation: float").Input("centre: float").Input("outer: float").Input("noise: count * uint64")
    .Attr("proxy: bool").Attr("groups: int").Attr("contiguous: bool").Attr(kActivations)
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds).Attr("count: int >= 0")
    .Attr(kStorage).Attr(kArrivingStorage).Attr(kReturnedStorage)
    .Output("dx: V").Output("dgamma: float").Output("dbeta: float").Output("dcentre: float").Output("douter: float")
    .SetShapeFn(set_shapes<GradientRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorGroupNormGradient").Device(tensorflow::DEVICE_CPU), GroupNormGradient);

}  // namespace
}  // namespace native
