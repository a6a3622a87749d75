// Norms and the following activation. There is one operation forward and one backward for three norms:
//
// * Batch norm (Ioffe and Szegedy, arXiv 1502.03167): the batch has parts, and each channel of a part has its statistics.
// * Group norm (Wu and He, arXiv 1803.08494): each group of channels of a sample has its statistics.
// * Proxy norm: group norm with a correction by the mean of the proxy (`centre`) and a factor of y (`outer`).
//
// emulator/layers/group_norm.py computes the same formulas without native kernels. With rounding, the normalised value, the
// activation and their gradients are rounded separately. Inference uses given moments (mean and variance).

#include "emulator/native/norms.h"

namespace native {
namespace {

// Factors for each channel: z = x * factor + shift, y = (activation(z) - centre) * outer. The gradient of x also needs
// `mean`, `b` and `k` (see `input_gradients`). Only proxy norm has `centre` and `outer`.
struct Factors {
  int64_t channels;
  const float *factor, *shift, *mean = nullptr, *b = nullptr, *k = nullptr, *centre = nullptr, *outer = nullptr;
};

// Sums over a block for each channel, in the backward pass. `slopes` sums dz = dy * outer * activation'(z), and `products`
// sums dz * (x - mean). For proxy norm, `arriving` sums dy, and `scaled` sums dy * (activation(z) - centre).
enum Sums { kSlopes, kProducts, kArrivingSums, kScaled };

// The salts of the five roundings of a norm: normalised value, activation, incoming gradient, dz, dx.
enum Salt { kNormed, kActivated, kArriving, kSlope, kOfInput };

using Backward = void(const float* x, const float* dy, const Factors& rows, const Block& block, const Noise& noise, float* sums,
                      float* dx);

// Functions that work on a block, compiled for one activation and one rounding. Arrays of channels must not overlap each
// other, nor x, dy and dx, because `#pragma GCC ivdep` promises this to the compiler. `noise` belongs to the sample.
struct Functions {
  // Computes y. It may be the same array as x. A shortcut is added before the activation.
  void (*values)(const float* x, const float* shortcut, const Factors& rows, const Block& block, const Noise& noise, float* y);
  // With rounding, `sums` stores dz in dx for `gradients`. Without, `gradients` computes dz again, which is faster than
  // memory.
  Backward *sums, *gradients;  // `gradients` computes dx = dz * factor + (x - mean) * b + k
};

template <Activation kind, bool proxy, typename Grid, bool has_shortcut = false>
void values(const float* x, const float* shortcut, const Factors& rows, const Block& block, const Noise& noise, float* y) {
  const float *factor = rows.factor, *shift = rows.shift, *centre = rows.centre, *outer = rows.outer;
  const Grid grid(noise);
  const int64_t channels = rows.channels;
  uint32_t place = block.first;
  for (int64_t p = 0; p < block.pixels; ++p, x += channels, y += channels, place += channels) {
#pragma GCC ivdep
    for (int32_t c = 0; c < static_cast<int32_t>(channels); ++c) {
      const float normed = grid(x[c] * factor[c] + shift[c], kNormed, place + c);
      const float value = activated<kind>(has_shortcut ? normed + shortcut[c] : normed);
      if constexpr (proxy) {
        y[c] = grid((value - centre[c]) * outer[c], kActivated, place + c);
      } else {
        y[c] = kind == Activation::kSwish ? grid(value, kActivated, place + c) : value;
      }
    }
    if (has_shortcut) shortcut += channels;
  }
}

template <Activation kind, bool proxy, typename Grid>
void slope_sums(const float* __restrict x, const float* __restrict dy, const Factors& rows, const Block& block,
                const Noise& noise, float* sums, float* __restrict dx) {
  const float *factor = rows.factor, *shift = rows.shift, *mean = rows.mean, *centre = rows.centre, *outer = rows.outer;
  const int64_t channels = rows.channels;
  float *slopes = sums + kSlopes * channels, *products = sums + kProducts * channels;
  float *arriving = sums + kArrivingSums * channels, *scaled = sums + kScaled * channels;
  const Grid grid(noise);
  uint32_t place = block.first;
  std::fill(sums, sums + (proxy ? 4 : 2) * channels, 0.0f);
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
void input_gradients(const float* __restrict x, const float* __restrict dy, const Factors& rows, const Block& block,
                     const Noise& noise, float*, float* __restrict dx) {
  const float *factor = rows.factor, *shift = rows.shift, *mean = rows.mean, *b = rows.b, *k = rows.k, *outer = rows.outer;
  const Grid grid(noise);
  const int64_t channels = rows.channels;
  uint32_t place = block.first;
  for (int64_t p = 0; p < block.pixels; ++p, x += channels, dy += channels, dx += channels, place += channels) {
#pragma GCC ivdep
    for (int32_t c = 0; c < static_cast<int32_t>(channels); ++c) {
      const float z = x[c] * factor[c] + shift[c];
      const float dz = Grid::kRounds ? dx[c] : activation_gradient<kind>(z, proxy ? dy[c] * outer[c] : dy[c]);
      dx[c] = grid(dz * factor[c] + (x[c] - mean[c]) * b[c] + k[c], kOfInput, place + c);
    }
  }
}

template <Activation kind, bool proxy, typename Grid>
constexpr Functions kFunctions = {&values<kind, proxy, Grid>, &slope_sums<kind, proxy, Grid>,
                                  &input_gradients<kind, proxy, Grid>};

template <bool proxy, typename Grid>
Functions functions_of(const std::string& activation) {
  if (activation == "relu") return kFunctions<Activation::kRelu, proxy, Grid>;
  if (activation == "relu6") return kFunctions<Activation::kRelu6, proxy, Grid>;
  if (activation == "swish") return kFunctions<Activation::kSwish, proxy, Grid>;
  return kFunctions<Activation::kLinear, proxy, Grid>;  // kActivations allows no others
}

// What the forward and the backward operation have in common. 0 parts mean that every sample is a part of the batch, and 0
// groups that every channel is a group.
struct NormRules : RoundingRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(RoundingRules::read(context));
    TF_RETURN_IF_ERROR(read_size(context, "parts", &parts, kMostParts, 0));
    TF_RETURN_IF_ERROR(read_size(context, "groups", &groups, kMostParts, 0));
    TF_RETURN_IF_ERROR(read_all(context, "contiguous", &contiguous, "proxies", &proxies, "activation", &activation, "epsilon",
                                &epsilon));
    if (!format.has_negative_zero) return InvalidArgument("norms cannot round to a format without a negative zero");
    if (proxies != 0 && proxies != 2) return InvalidArgument("proxy norm needs two proxies, not ", proxies);
    functions = with_grid([&](auto* grid) {
      using Grid = std::remove_pointer_t<decltype(grid)>;
      return proxies ? functions_of<true, Grid>(activation) : functions_of<false, Grid>(activation);
    });
    return absl::OkStatus();
  }

  // `patterns` has the pattern of each input before the proxies.
  void check(Shapes* shapes, std::vector<const char*> patterns) const {
    shapes->input(0, "nhwc");
    shapes->set('p', parts ? parts : (*shapes)['n']);
    patterns.insert(patterns.end(), proxies, "c");
    shapes->first_inputs(patterns);
    shapes->require_positive("nhwc");
    RoundingRules::check(shapes, patterns.size());
    if (parts) shapes->divide('n', 's', parts);
    if (groups) shapes->divide('c', 'g', groups);
    shapes->output(0, "nhwc");
    for (int k = 1; k < shapes->outputs(); ++k) shapes->output(k, "pc");
  }

  // Adds up the values of all channels of a group, and returns the sum for each channel.
  std::vector<double> group_sums(const std::vector<double>& sums) const {
    if (!groups) return sums;
    const int64_t channels = sums.size(), size = channels / groups;
    auto group = [&](int64_t channel) { return contiguous ? channel / size : channel % groups; };
    std::vector<double> totals(groups, 0.0), spread(channels);
    for (int64_t c = 0; c < channels; ++c) totals[group(c)] += sums[c];
    for (int64_t c = 0; c < channels; ++c) spread[c] = totals[group(c)];
    return spread;
  }

  // Returns how many values are normalised together.
  double together(const Walk& walk) const {
    return static_cast<double>(walk.samples * walk.pixels * (groups ? walk.channels / groups : 1));
  }

  static constexpr int64_t kMostParts = 1 << 20;
  int64_t parts = 0, groups = 0;
  bool contiguous = false;
  int proxies = 0;
  float epsilon = 0;
  std::string activation;
  Functions functions;
};

// At the end of a residual unit, a shortcut is added before the activation.
struct ForwardRules : NormRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(NormRules::read(context));
    TF_RETURN_IF_ERROR(read_all(context, "shortcuts", &shortcuts, "two_pass", &two_pass, "given", &given));
    if (given != 0 && (given != 2 || parts != 1 || groups != 0)) {
      return InvalidArgument("moments can be given as mean and variance of batch norm with one part");
    }
    if (shortcuts) functions.values = &values<Activation::kRelu, false, Exact, true>;
    if (shortcuts == 0 || (shortcuts == 1 && activation == "relu" && rounding == "none" && !proxies)) return absl::OkStatus();
    return InvalidArgument("there can be one shortcut, only before a relu, without rounding and without proxy norm");
  }

  void check(Shapes* shapes) const {
    std::vector<const char*> patterns = {"nhwc", "c", "c"};
    patterns.insert(patterns.end(), given, "c");
    NormRules::check(shapes, patterns);
    if (shortcuts) shapes->input(shapes->inputs() - 1, "nhwc");
  }

  int shortcuts = 0, given = 0;
  bool two_pass = true;
};

struct GradientRules : NormRules {
  void check(Shapes* shapes) const { NormRules::check(shapes, {"nhwc", "nhwc", "c", "c", "pc", "pc"}); }
};

class Norm : public CheckedKernel<ForwardRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Walk walk(input, rules_.parts);
    const int64_t channels = walk.channels;
    const Reader x(input);
    const float *gamma = numbers(context, 1), *beta = numbers(context, 2);
    const int proxy = 3 + rules_.given;  // index of the input
    const float *centre = rules_.proxies ? numbers(context, proxy) : nullptr;
    const float* outer = rules_.proxies ? numbers(context, proxy + 1) : nullptr;
    const float* shortcut = rules_.shortcuts ? numbers(context, context->num_inputs() - 1) : nullptr;
    const TensorShape rows({walk.rows, channels});
    Tensor* output;
    float *mean, *variance;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, input.shape(), &output));
    OP_REQUIRES_OK(context, allocate(context, {{rows, &mean}, {rows, &variance}}, 1));
    const Writer y(output);
    BlockSums sums(walk, rules_.given ? 0 : 2);
    std::vector<float> factor(walk.rows * channels), shift(walk.rows * channels);
    const std::vector<Noise> noise = rules_.noise(context, proxy + rules_.proxies, walk.batch);
    auto sum_block = [&](const Block& block) {
      const float* from = x.read(block.start, block.size, &Scratches::own().x);
      sum_powers(from, block.pixels, channels, sums.of(block.sample, block.block));
    };
    auto set_factors = [&](int64_t row) {
      const int64_t at = row * channels;
      std::vector<float> r(channels);
      if (rules_.given) {
        std::copy_n(numbers(context, 3), channels, mean);
        std::copy_n(numbers(context, 4), channels, variance);
      } else {
        set_moments(walk, row, sums, mean + at, variance + at);
      }
      invert(channels, variance + at, rules_.epsilon, r.data());
      scale(channels, gamma, beta, mean + at, r.data(), &factor[at], &shift[at]);
    };
    auto set_values = [&](const Block& block) {
      const int64_t at = block.row * channels;
      const Factors own{channels, &factor[at], &shift[at], nullptr, nullptr, nullptr, centre, outer};
      Scratches& scratches = Scratches::own();
      const float* from = x.read(block.start, block.size, &scratches.x);
      float* to = y.begin(block.start, block.size, &scratches.result);
      rules_.functions.values(from, shortcut ? shortcut + block.start : nullptr, own, block, noise[block.sample], to);
      y.end(block.start, block.size, scratches.result);
    };
    if (!rules_.given) return run(context, walk, 2, {{sum_block, set_factors}, {set_values, nullptr}});
    set_factors(0);
    run(context, walk, 1, {{set_values, nullptr}});
  }

 private:
  // Computes the means of a block, and the sums of squared distances from the means. The second pass reads from the cache.
  // If the norm has one pass, computes the sums of x and of its squares instead.
  void sum_powers(const float* x, int64_t pixels, int64_t channels, float* means) const {
    float* const squares = means + channels;
    sum_pixels(x, pixels, channels, means, [](float v, int64_t) { return v; });
    if (!rules_.two_pass) return sum_pixels(x, pixels, channels, squares, [](float v, int64_t) { return v * v; });
    for (int64_t c = 0; c < channels; ++c) means[c] /= static_cast<float>(pixels);
    sum_pixels(x, pixels, channels, squares, [means](float v, int64_t c) { return (v - means[c]) * (v - means[c]); });
  }

  // Sets mean and variance of a part of the batch. The squared distances of a block from the common mean are squares + pixels *
  // (mean of the block - common mean)^2. If the norm has one pass, variance = (mean of x^2) - mean^2, in FP32.
  void set_moments(const Walk& walk, int64_t row, BlockSums& sums, float* mean, float* variance) const {
    const double count = rules_.together(walk);
    std::vector<double> means(walk.channels, 0.0), squares(walk.channels, 0.0);
    auto each_block = [&](auto visit) {
      for (int64_t k = row * walk.samples * walk.blocks; k < (row + 1) * walk.samples * walk.blocks; ++k) {
        const Block block = walk.block(k);
        const float* own = sums.of(block.sample, block.block);
        const double pixels = rules_.two_pass ? block.pixels : 1;
        for (int64_t c = 0; c < walk.channels; ++c) visit(c, pixels, own[c], own[walk.channels + c]);
      }
    };
    each_block([&](int64_t c, double pixels, double own, double) { means[c] += pixels * own; });
    means = rules_.group_sums(means);
    for (double& each : means) each /= count;
    each_block([&](int64_t c, double pixels, double own, double square) {
      const double distance = rules_.two_pass ? own - means[c] : 0;
      squares[c] += square + pixels * distance * distance;
    });
    squares = rules_.group_sums(squares);
    for (int64_t c = 0; c < walk.channels; ++c) {
      mean[c] = static_cast<float>(means[c]);
      variance[c] = static_cast<float>(squares[c] / count);
      if (!rules_.two_pass) variance[c] = std::max(variance[c] - mean[c] * mean[c], 0.0f);
    }
  }
};

class NormGradient : public CheckedKernel<GradientRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Walk walk(input, rules_.parts);
    const int64_t channels = walk.channels, size = walk.rows * channels;
    const Reader x(input), dy(context->input(1));
    const float *gamma = numbers(context, 2), *beta = numbers(context, 3), *mean = numbers(context, 4);
    const float *variance = numbers(context, 5), *centre = rules_.proxies ? numbers(context, 6) : nullptr;
    const float* outer = rules_.proxies ? numbers(context, 7) : nullptr;
    const TensorShape rows({walk.rows, channels});
    Tensor* output;
    float *dgamma, *dbeta, *dcentre, *douter;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    OP_REQUIRES_OK(context, allocate(context, {{rows, &dgamma}, {rows, &dbeta}}, 1));
    if (rules_.proxies) OP_REQUIRES_OK(context, allocate(context, {{rows, &dcentre}, {rows, &douter}}, 3));
    const Writer dx(output);
    BlockSums sums(walk, 2 + rules_.proxies);
    std::vector<float> r(size), factor(size), shift(size), b(size), k(size);
    invert(size, variance, rules_.epsilon, r.data());
    for (int64_t at = 0; at < size; at += channels) scale(channels, gamma, beta, mean + at, &r[at], &factor[at], &shift[at]);
    const std::vector<Noise> noise = rules_.noise(context, 6 + rules_.proxies, walk.batch);
    auto do_block = [&](const Block& block, Backward* function, float* to) {
      Scratches& scratches = Scratches::own();
      const float *from = x.read(block.start, block.size, &scratches.x), *above = dy.read(block.start, block.size, &scratches.dy);
      const int64_t at = block.row * channels;
      const Factors own{channels, &factor[at], &shift[at], mean + at, &b[at], &k[at], centre, outer};
      function(from, above, own, block, noise[block.sample], sums.of(block.sample, block.block), to);
      dx.end(block.start, block.size, scratches.result);
    };
    auto sum_slopes = [&](const Block& block) {
      do_block(block, rules_.functions.sums, dx.begin(block.start, block.size, &Scratches::own().result));
    };
    auto set_gradients = [&](int64_t row) {
      const int64_t at = row * channels;
      const double count = rules_.together(walk);
      std::vector<double> of_mean = sums.total(row, kSlopes), of_deviation = sums.total(row, kProducts);
      for (int64_t c = 0; c < channels; ++c) {
        dbeta[at + c] = static_cast<float>(of_mean[c]);
        dgamma[at + c] = static_cast<float>(of_deviation[c] * r[at + c]);
        if (rules_.groups) of_mean[c] *= gamma[c], of_deviation[c] *= factor[at + c];
      }
      of_mean = rules_.group_sums(of_mean);
      of_deviation = rules_.group_sums(of_deviation);
      for (int64_t c = 0; c < channels; ++c) {  // a channel that is a group takes its factor here
        const float inverse = r[at + c], own = rules_.groups ? 1.0f : factor[at + c];
        b[at + c] = static_cast<float>(-own * inverse * inverse * of_deviation[c] / count);
        k[at + c] = static_cast<float>(-(rules_.groups ? inverse : own) * of_mean[c] / count);
      }
      if (!rules_.proxies) return;
      const std::vector<double> arriving = sums.total(row, kArrivingSums), scaled = sums.total(row, kScaled);
      for (int64_t c = 0; c < channels; ++c) {
        dcentre[at + c] = static_cast<float>(-outer[c] * arriving[c]);
        douter[at + c] = static_cast<float>(scaled[c]);
      }
    };
    auto set_input_gradients = [&](const Block& block) {
      do_block(block, rules_.functions.gradients, dx.again(block.start, block.size, &Scratches::own().result));
    };
    run(context, walk, 3, {{sum_slopes, set_gradients}, {set_input_gradients, nullptr}});
  }
};

NATIVE_OPERATION(Norm)
    .Input("x: T").Input("gamma: float").Input("beta: float").Input("moments: given * float").Input("proxy: proxies * float")
    .Input("noise: count * uint64").Input("shortcut: shortcuts * float")
    .Attr("parts: int = 0").Attr("groups: int = 0").Attr("contiguous: bool = false").Attr("two_pass: bool = true")
    .Attr(kActivations).Attr("epsilon: float").Attr("given: int >= 0").Attr("proxies: int >= 0").Attr("shortcuts: int >= 0")
    .Attr("count: int >= 0")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr(kStorage)
    .Output("y: T").Output("mean: float").Output("variance: float");

NATIVE_OPERATION(NormGradient)
    .Input("x: T").Input("dy: U").Input("gamma: float").Input("beta: float").Input("mean: float").Input("variance: float")
    .Input("proxy: proxies * float").Input("noise: count * uint64")
    .Attr("parts: int = 0").Attr("groups: int = 0").Attr("contiguous: bool = false")
    .Attr(kActivations).Attr("epsilon: float").Attr("proxies: int >= 0").Attr("count: int >= 0")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr(kStorage).Attr(kArrivingStorage).Attr(kReturnedStorage)
    .Output("dx: V").Output("dgamma: float").Output("dbeta: float").Output("dproxy: proxies * float");

}  // namespace
}  // namespace native
