// Operations in one pass over tensors of FP32 or 16 bits: sums, gates, ReLU, gradients of these, rounding, widening, and the
// shares of small and large numbers. A gate multiplies a tensor by a factor for each sample and channel.

#include "emulator/native/results.h"
#include "emulator/native/storage.h"

namespace native {
namespace {

constexpr int64_t kPart = 4096;  // number of elements in a work item; its copies in FP32 stay in the caches

enum class Function { kSame, kSum, kProduct, kRelu, kReluGradient };

// Applies a function. NaN stays NaN in a ReLU.
template <Function function>
inline float applied(float x, float other) {
  if constexpr (function == Function::kSum) return x + other;
  if constexpr (function == Function::kProduct) return x * other;
  if constexpr (function == Function::kRelu) return x <= 0.0f ? 0.0f : x;
  if constexpr (function == Function::kReluGradient) return x > 0.0f ? other : 0.0f;
  return x;
}

// The rules of an operation with exact results.
struct Unrounded : NoAttributes {
  Results results(OpKernelContext*, int, int64_t samples) const { return {&round_all<Exact>, std::vector<Noise>(samples)}; }

  static constexpr int count = 0;
};

// The factors of a product belong to samples and channels. The noise is one number, or one number for each sample.
template <Function function, typename Base>
struct ElementRules : Base {
  void check(Shapes* shapes) const {
    if (kGates) shapes->first_inputs({"nhwc", "n11c"});
    if (kInputs == 2 && !kGates) shapes->equal(1, 0);
    if (this->count) shapes->count(kInputs, shapes->has_axes(kInputs) ? shapes->first_axis(0) : 1);
    shapes->output_as(0, 0);
  }

  static constexpr bool kGates = function == Function::kProduct;
  static constexpr int kInputs = function == Function::kSame || function == Function::kRelu ? 1 : 2;
};

// An operation that computes numbers of y from the numbers of its inputs at the same place, and rounds them. y replaces x if
// nothing else needs x.
template <Function function, typename Base>
class Elementwise : public CheckedKernel<ElementRules<function, Base>> {
 public:
  using CheckedKernel<ElementRules<function, Base>>::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    using Rules = ElementRules<function, Base>;
    const Tensor& input = context->input(0);
    const bool by_sample = Rules::kGates || (this->rules_.count && context->input(Rules::kInputs).dims() > 0);
    const int64_t size = input.NumElements(), samples = by_sample && input.dims() > 0 ? input.dim_size(0) : 1;
    Tensor* output;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, input.shape(), &output));
    if (size == 0) return;
    const int64_t of_sample = size / samples, channels = Rules::kGates ? input.dim_size(3) : 1;
    const int64_t part = (std::min(kPart, of_sample) + channels - 1) / channels * channels, parts = (of_sample + part - 1) / part;
    const Results results = this->rules_.results(context, Rules::kInputs, samples);
    const Reader x(input), other(context->input(Rules::kInputs - 1));
    const Writer y(output);
    in_threads(context, samples * parts, part, [&](int64_t begin, int64_t end) {
      Scratches& scratches = Scratches::own();
      for (int64_t k = begin; k < end; ++k) {
        const int64_t sample = k / parts, first = k % parts * part, start = sample * of_sample + first;
        const int64_t own = std::min(part, of_sample - first), width = Rules::kGates ? channels : own;
        float* const to = y.begin(start, own, &scratches.result);
        const float* from = to;
        if constexpr (function == Function::kSame) {
          from = x.read(start, own, to);
        } else {
          const float* const a = x.read(start, own, &scratches.x);
          const int64_t place = Rules::kGates ? sample * channels : start;
          const float* const b = Rules::kInputs == 1 ? a : other.read(place, width, &scratches.dy);
          for (int64_t p = 0; p < own; p += width) {
#pragma GCC ivdep
            for (int64_t c = 0; c < width; ++c) to[p + c] = applied<function>(a[p + c], b[c]);
          }
        }
        results.round(from, own, sample, static_cast<uint32_t>(first), to);
        y.end(start, own, scratches.result);
      }
    });
  }
};

using Sum = Elementwise<Function::kSum, ResultRounding>;
using Gate = Elementwise<Function::kProduct, ResultRounding>;
using Rounding = Elementwise<Function::kSame, ResultRounding>;
using Widening = Elementwise<Function::kSame, Unrounded>;
using Relu = Elementwise<Function::kRelu, Unrounded>;
using ReluGradient = Elementwise<Function::kReluGradient, Unrounded>;

struct GateGradientRules : NoAttributes {
  void check(Shapes* shapes) const {
    shapes->first_inputs({"nhwc", "n11c", "nhwc"});
    shapes->output(0, "nhwc");
    shapes->output(1, "n11c");
  }
};

// Computes dx = dy * factor, and dfactor, the sum of dy * x for each sample and channel.
class GateGradient : public CheckedKernel<GateGradientRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Walk walk(context->input(0));
    const Reader x(context->input(0)), dy(context->input(2));
    const float* factor = numbers(context, 1);
    float *dx, *dfactor;
    OP_REQUIRES_OK(context, allocate(context, {{context->input(0).shape(), &dx}, {context->input(1).shape(), &dfactor}}));
    BlockSums sums(walk);
    auto multiply = [&](const Block& block) {
      const int64_t channels = walk.channels;
      const float* from = x.read(block.start, block.size, &Scratches::own().x);
      const float* above = dy.read(block.start, block.size, &Scratches::own().dy);
      const float* const own = factor + block.sample * channels;
      float *to = dx + block.start, *const total = sums.of(block.sample, block.block);
      std::fill(total, total + channels, 0.0f);
      for (int64_t p = 0; p < block.pixels; ++p, from += channels, above += channels, to += channels) {
#pragma GCC ivdep
        for (int64_t c = 0; c < channels; ++c) {
          to[c] = above[c] * own[c];
          total[c] += above[c] * from[c];
        }
      }
    };
    auto set_sums = [&](int64_t sample) {
      const std::vector<double> total = sums.total(sample);
      for (int64_t c = 0; c < walk.channels; ++c) dfactor[sample * walk.channels + c] = static_cast<float>(total[c]);
    };
    run(context, walk, 1, {{multiply, set_sums}});
  }
};

struct ShareRules {
  template <typename Context>
  absl::Status read(Context* context) {
    return read_all(context, "small", &small, "large", &large);
  }

  void check(Shapes* shapes) const { shapes->output(0, "2"); }

  float small = 0, large = 0;
};

// The shares of the numbers of the first sample whose absolute values are at most `small`, and not below `large`. NaN is large.
class Shares : public CheckedKernel<ShareRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    float* shares;
    OP_REQUIRES_OK(context, allocate(context, {{TensorShape({2}), &shares}}));
    const int64_t count = x.dims() && x.dim_size(0) ? x.NumElements() / x.dim_size(0) : x.NumElements();
    const float* from = Reader(x).read(0, count, &Scratches::own().x);
    int64_t small = 0, large = 0;
    for (int64_t k = 0; k < count; ++k) {
      const float size = std::fabs(from[k]);
      small += size <= rules_.small;
      large += !(size < rules_.large);
    }
    const double most = static_cast<double>(std::max<int64_t>(count, 1));
    shares[0] = static_cast<float>(small / most);
    shares[1] = static_cast<float>(large / most);
  }
};

NATIVE_OPERATION(Sum)
    .Input("x: T").Input("other: U").Input("noise: count * uint64")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int = 0").Attr(kStorage).Attr(kArrivingStorage).Attr(kReturnedStorage)
    .Output("y: V");

NATIVE_OPERATION(Gate)
    .Input("x: T").Input("factor: float").Input("noise: count * uint64")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int = 0").Attr(kStorage).Attr(kReturnedStorage)
    .Output("y: V");

NATIVE_OPERATION(Rounding)
    .Input("x: float").Input("noise: count * uint64")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int").Attr(kStorage)
    .Output("y: T");

// The attribute `again` only distinguishes operations: TensorFlow would merge two equal ones, and keep the result in memory
// between them.
NATIVE_OPERATION(Widening).Input("x: T").Attr(kStorage).Attr("again: bool = false").Output("y: float");

NATIVE_OPERATION(Relu).Input("x: T").Attr(kStorage).Output("y: T");

NATIVE_OPERATION(ReluGradient).Input("x: T").Input("dy: U").Attr(kStorage).Attr(kArrivingStorage).Output("dx: U");

NATIVE_OPERATION(GateGradient)
    .Input("x: T").Input("factor: float").Input("dy: U").Attr(kStorage).Attr(kArrivingStorage)
    .Output("dx: float").Output("dfactor: float");

NATIVE_OPERATION(Shares).Input("x: T").Attr("small: float").Attr("large: float").Attr(kStorage).Output("shares: float");

}  // namespace
}  // namespace native
