// Rounds a tensor to a format, to nearest or at random, in one pass. If the input is not needed later, it is rounded in
// place.

#include "emulator/native/formats.h"

namespace native {
namespace {

constexpr int64_t kPart = 8192;  // number of elements in a work item

// y may be the same array as x.
template <Kind kind>
void round_nearest(const float* x, int64_t size, const Format& format, float* y) {
  const Format own = format;
#pragma GCC ivdep
  for (int64_t k = 0; k < size; ++k) y[k] = to_nearest<kind>(x[k], own);
}

template <Kind kind>
void round_at_random(const float* x, int64_t size, const Format& format, uint64_t word, uint32_t place, float* y) {
  const Format own = format;
  const uint32_t low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
#pragma GCC ivdep
  for (int32_t k = 0; k < static_cast<int32_t>(size); ++k) {
    y[k] = at_random<kind>(x[k], uniform_of(low, high, place + static_cast<uint32_t>(k)), own);
  }
}

// The functions that round to one kind of format.
struct Parts {
  decltype(&round_nearest<Kind::kNarrow>) nearest;
  decltype(&round_at_random<Kind::kNarrow>) at_random;
};

template <Kind kind>
constexpr Parts parts_of() {
  return {&round_nearest<kind>, &round_at_random<kind>};
}

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
  explicit Rounding(OpKernelConstruction* construction) : CheckedKernel(construction) {
    parts_ = rules_.kind == Kind::kShortened    ? parts_of<Kind::kShortened>()
             : rules_.kind == Kind::kNarrow     ? parts_of<Kind::kNarrow>()
                                                : parts_of<Kind::kUnsignedZero>();
  }

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
    float* y = output->flat<float>().data();
    const uint64_t* numbers = random ? noise->flat<tensorflow::uint64>().data() : nullptr;
    const int64_t row = size / rows, parts = (row + kPart - 1) / kPart;
    const int64_t cost = std::min(kPart, row) * (random ? 2 : 1);
    in_threads(context, rows * parts, cost, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t sample = k / parts, first = k % parts * kPart, start = sample * row + first;
        const int64_t own = std::min(kPart, row - first);
        if (random) {
          const uint64_t word = word_of(rules_.salt, numbers[sample]);
          parts_.at_random(x + start, own, rules_.format, word, static_cast<uint32_t>(first), y + start);
        } else {
          parts_.nearest(x + start, own, rules_.format, y + start);
        }
      }
    });
  }

 private:
  Parts parts_;
};

REGISTER_OP("EmulatorRounding")
    .Input("x: float").Input("noise: count * uint64")
    .Attr("count: int >= 0").Attr("salt: int")
    .Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Output("y: float")
    .SetShapeFn(set_shapes<Rules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorRounding").Device(tensorflow::DEVICE_CPU), Rounding);

}  // namespace
}  // namespace native
