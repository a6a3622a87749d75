// Operations in one pass over tensors of FP32 or 16 bits: the rounded sum of two tensors, the rounded product of a tensor with
// a factor for each sample and channel, ReLU, and the shares of small and large numbers.

#include "emulator/native/results.h"
#include "emulator/native/storage.h"

namespace native {
namespace {

// Calls `compute(sample, first number, count, result)` for every block, rounds the results and stores them in y.
template <typename Compute>
void write_rounded(OpKernelContext* context, const Walk& walk, const Results& results, Tensor* y, Compute compute) {
  const Writer writer(y);
  run(context, walk,
      [&](int64_t sample, int64_t, int64_t first, int64_t pixels) {
        static thread_local Scratch exact;
        const int64_t count = pixels * walk.channels, start = sample * walk.sample_size() + first;
        exact.resize(std::max<size_t>(exact.size(), count));
        compute(sample, start, count, exact.data());
        Scratch& scratch = Scratches::own().result;
        results.round(exact.data(), count, sample, static_cast<uint32_t>(first), writer.begin(start, count, &scratch));
        writer.end(start, count, scratch);
      },
      1);
}

struct SumRules : ResultRounding {
  void check(Shapes* shapes) const {
    shapes->input(0, "nhwc");
    shapes->input(1, "nhwc");
    ResultRounding::check(shapes, 2);
    shapes->output(0, "nhwc");
  }
};

class Sum : public CheckedKernel<SumRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Reader x(input), other(context->input(1));
    const Walk walk(input);
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &y));
    write_rounded(context, walk, rules_.results(context, 2, walk.batch), y,
                  [&](int64_t, int64_t start, int64_t count, float* __restrict to) {
                    const float* a = x.read(start, count, &Scratches::own().x);
                    const float* b = other.read(start, count, &Scratches::own().dy);
                    for (int64_t k = 0; k < count; ++k) to[k] = a[k] + b[k];
                  });
  }
};

struct GateRules : ResultRounding {
  void check(Shapes* shapes) const {
    shapes->input(0, "nhwc");
    shapes->input(1, "n11c");
    ResultRounding::check(shapes, 2);
    shapes->output(0, "nhwc");
  }
};

class Gate : public CheckedKernel<GateRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Reader x(input);
    const float* factors = numbers(context, 1);
    const Walk walk(input);
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &y));
    write_rounded(context, walk, rules_.results(context, 2, walk.batch), y,
                  [&](int64_t sample, int64_t start, int64_t count, float* __restrict to) {
                    const float* from = x.read(start, count, &Scratches::own().x);
                    const float* factor = factors + sample * walk.channels;
                    for (int64_t p = 0; p < count; p += walk.channels) {
                      for (int64_t c = 0; c < walk.channels; ++c) to[p + c] = from[p + c] * factor[c];
                    }
                  });
  }
};

struct ReluRules : NoAttributes {
  void check(Shapes* shapes) const {
    if (shapes->inputs() > 1) shapes->equal(1, 0);
    shapes->output_as(0, 0);
  }
};

// The gradient is dy where x is positive, otherwise 0. Without dy, the result is x where x is positive, otherwise 0; NaN
// stays NaN.
class Relu : public CheckedKernel<ReluRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &dy = context->input(context->num_inputs() - 1);
    const bool is_gradient = context->num_inputs() > 1;
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));
    const Reader above(dy);
    const Writer writer(y);
    in_threads(context, x.NumElements(), 1, [&](int64_t begin, int64_t end) {
      constexpr int64_t kPart = 4096;
      Scratches& scratches = Scratches::own();
      const Reader reader(x);
      for (; begin < end; begin += kPart) {
        const int64_t count = std::min(kPart, end - begin);
        const float* from = reader.read(begin, count, &scratches.x);
        const float* gradient = is_gradient ? above.read(begin, count, &scratches.dy) : from;
        float* to = writer.begin(begin, count, &scratches.result);
        if (is_gradient) {
          for (int64_t k = 0; k < count; ++k) to[k] = from[k] > 0.0f ? gradient[k] : 0.0f;
        } else {
          for (int64_t k = 0; k < count; ++k) to[k] = from[k] <= 0.0f ? 0.0f : from[k];
        }
        writer.end(begin, count, scratches.result);
      }
    });
  }
};

struct ShareRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("small", &small));
    return context->GetAttr("large", &large);
  }

  void check(Shapes* shapes) const {
    shapes->set('s', 2);
    shapes->output(0, "s");
  }

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

REGISTER_OP("EmulatorShares")
    .Input("x: T").Attr("small: float").Attr("large: float").Attr(kStorage)
    .Output("shares: float")
    .SetShapeFn(set_shapes<ShareRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorShares").Device(tensorflow::DEVICE_CPU), Shares);

REGISTER_OP("EmulatorSum")
    .Input("x: T").Input("other: U").Input("noise: count * uint64")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int = 0").Attr(kStorage).Attr(kArrivingStorage).Attr(kReturnedStorage)
    .Output("y: V")
    .SetShapeFn(set_shapes<SumRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorSum").Device(tensorflow::DEVICE_CPU), Sum);

REGISTER_OP("EmulatorGate")
    .Input("x: T").Input("factor: float").Input("noise: count * uint64")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int = 0").Attr(kStorage).Attr(kReturnedStorage)
    .Output("y: V")
    .SetShapeFn(set_shapes<GateRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorGate").Device(tensorflow::DEVICE_CPU), Gate);

REGISTER_OP("EmulatorRelu")
    .Input("x: T").Attr(kStorage)
    .Output("y: T")
    .SetShapeFn(set_shapes<ReluRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorRelu").Device(tensorflow::DEVICE_CPU), Relu);

REGISTER_OP("EmulatorReluGradient")
    .Input("x: T").Input("dy: U").Attr(kStorage).Attr(kArrivingStorage)
    .Output("dx: U")
    .SetShapeFn(set_shapes<ReluRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorReluGradient").Device(tensorflow::DEVICE_CPU), Relu);

}  // namespace
}  // namespace native
