// Rounds an FP32 tensor to a format, to nearest or at random, in one pass, and stores it in FP32 or in 16 bits. A result in
// FP32 replaces the input if nothing else needs the input. A second operation widens 16-bit tensors to FP32.

#include "emulator/native/results.h"
#include "emulator/native/storage.h"

namespace native {
namespace {

constexpr int64_t kPart = 8192;  // number of elements in a work item

struct Rules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("salt", &salt));
    return read_format(context, &format, &kind);
  }

  // The noise is one number, or one number for each sample.
  void check(Shapes* shapes) const {
    shapes->require(shapes->inputs() <= 2, "there can be only one tensor of noise");
    if (shapes->inputs() > 1) shapes->count(1, shapes->has_axes(1) ? shapes->first_axis(0) : 1);
    shapes->output_as(0, 0);
  }

  tensorflow::int64 salt = 0;
  Format format;
  Kind kind;
};

class Rounding : public CheckedKernel<Rules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const bool random = context->num_inputs() > 1;
    const Tensor* noise = random ? &context->input(1) : nullptr;
    const bool by_sample = random && noise->dims() > 0 && input.dims() > 0;
    const int64_t size = input.NumElements(), rows = by_sample ? input.dim_size(0) : 1;
    Tensor* output;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, input.shape(), &output));
    if (size == 0) return;
    const float* x = input.flat<float>().data();
    const uint64_t* numbers = random ? noise->flat<tensorflow::uint64>().data() : nullptr;
    const int64_t row = size / rows, parts = (row + kPart - 1) / kPart;
    const int64_t cost = std::min(kPart, row) * (random ? 2 : 1);
    const RoundingFunctions functions = rounding_functions(rules_.kind);
    with_storage(output->dtype(), [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      T* const y = output->flat<T>().data();
      in_threads(context, rows * parts, cost, [&](int64_t begin, int64_t end) {
        alignas(64) float scratch[kPart];
        for (int64_t k = begin; k < end; ++k) {
          const int64_t sample = k / parts, first = k % parts * kPart, start = sample * row + first;
          const int64_t own = std::min(kPart, row - first);
          float* to = scratch;
          if constexpr (std::is_same_v<T, float>) to = y + start;
          if (random) {
            const uint64_t word = word_of(rules_.salt, numbers[sample]);
            functions.at_random(x + start, own, rules_.format, word, static_cast<uint32_t>(first), to);
          } else {
            functions.nearest(x + start, own, rules_.format, to);
          }
          if constexpr (!std::is_same_v<T, float>) narrow(to, own, y + start);
        }
      });
    });
  }
};

REGISTER_OP("EmulatorRounding")
    .Input("x: float").Input("noise: count * uint64")
    .Attr("count: int >= 0").Attr("salt: int")
    .Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr(kStorage)
    .Output("y: T")
    .SetShapeFn(set_shapes<Rules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorRounding").Device(tensorflow::DEVICE_CPU), Rounding);

struct WideningRules : NoAttributes {
  void check(Shapes* shapes) const { shapes->output_as(0, 0); }
};

class Widening : public CheckedKernel<WideningRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    float* y;
    OP_REQUIRES_OK(context, allocate(context, {{input.shape(), &y}}));
    with_storage(input.dtype(), [&](auto* type) {
      const auto* const x = input.flat<std::remove_pointer_t<decltype(type)>>().data();
      in_threads(context, input.NumElements(), 1, [&](int64_t begin, int64_t end) { widen(x + begin, end - begin, y + begin); });
    });
  }
};

// The attribute `again` only distinguishes operations: TensorFlow would merge two equal ones, and keep the result in memory
// between them.
REGISTER_OP("EmulatorWidening")
    .Input("x: T").Attr(kStorage).Attr("again: bool = false")
    .Output("y: float")
    .SetShapeFn(set_shapes<WideningRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorWidening").Device(tensorflow::DEVICE_CPU), Widening);

}  // namespace
}  // namespace native
