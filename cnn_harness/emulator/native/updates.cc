// Updates many variables in one operation. If each variable had its own operation, starting hundreds of small operations
// would take most of the time.

#include <array>
#include <cmath>
#include <vector>

#include "emulator/native/blocks.h"

namespace native {
namespace {

constexpr int64_t kPart = 4096;  // number of elements in a work item

// The rules of updates. `moved` returns a number of a variable after the update by gradient g, and changes the slots that
// belong to the number, such as momentum.

// a = momentum * a + g; w -= rate * a. `a` is the slot.
struct Momentum {
  static constexpr int kSlots = 1;

  template <typename Context>
  absl::Status read(Context* context) {
    return context->GetAttr("momentum", &momentum);
  }

  float moved(float w, float g, float rate, std::array<float, kSlots>& slots) const {
    slots[0] = momentum * slots[0] + g;
    return w - rate * slots[0];
  }

  float momentum = 0;
};

// square += (g^2 - square) * share; a = momentum * a + rate * g / sqrt(square + epsilon); w -= a. `square` and `a` are the
// slots.
struct RmsProp {
  static constexpr int kSlots = 2;

  template <typename Context>
  absl::Status read(Context* context) {
    return read_all(context, "momentum", &momentum, "share", &share, "epsilon", &epsilon);
  }

  float moved(float w, float g, float rate, std::array<float, kSlots>& slots) const {
    slots[0] += (g * g - slots[0]) * share;
    slots[1] = momentum * slots[1] + rate * g * (1 / std::sqrt(slots[0] + epsilon));
    return w - slots[1];
  }

  float momentum = 0, share = 0, epsilon = 0;
};

// An average w moves to the value g by the share `rate`.
struct Average : NoAttributes {
  static constexpr int kSlots = 0;

  float moved(float w, float g, float rate, std::array<float, kSlots>&) const { return w - (w - g) * rate; }
};

// The inputs are lists with a tensor for each variable: the weights, each kind of slot, the gradients. Then follow the rate,
// the decays and the divisor, or for averages only a rate for each variable. The outputs are the lists of new weights and slots.
template <typename Rule>
struct UpdateRules : Rule {
  static constexpr int kKinds = 1 + Rule::kSlots;  // the weights and the slots of a variable change
  static constexpr bool kDecays = Rule::kSlots > 0;

  void check(Shapes* shapes) const {
    const int count = shapes->outputs() / kKinds, more = (kKinds + 1) * count;
    for (int k = count; k < more; ++k) shapes->equal(k, k % count);
    for (int k = 0; k < shapes->outputs(); ++k) shapes->output_as(k, k);
    shapes->count(more, kDecays ? 1 : count);
    if (kDecays) shapes->count(more + 1, count);
    if (kDecays) shapes->count(more + 2, 1);
  }
};

template <typename Rule>
class Update : public CheckedKernel<UpdateRules<Rule>> {
 public:
  using CheckedKernel<UpdateRules<Rule>>::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const int count = context->num_outputs() / kKinds, more = (kKinds + 1) * count;
    std::vector<Part> parts;
    for (int k = 0; k < count; ++k) {
      Part part;
      for (int kind = 0; kind < kKinds; ++kind) {
        const int place = kind * count + k;
        const TensorShape& shape = context->input(place).shape();
        Tensor* output;  // it replaces the old numbers or the gradient if nothing else needs them
        OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({place, kKinds * count + k}, place, shape, &output));
        part.from[kind] = numbers(context, place);
        part.to[kind] = output->flat<float>().data();
      }
      part.g = numbers(context, kKinds * count + k);
      part.rate = numbers(context, more)[UpdateRules<Rule>::kDecays ? 0 : k];
      part.decay = UpdateRules<Rule>::kDecays ? numbers(context, more + 1)[k] : 0;
      part.divisor = UpdateRules<Rule>::kDecays ? numbers(context, more + 2)[0] : 1;
      const int64_t size = context->input(k).NumElements();
      for (part.first = 0; part.first < size; part.first += kPart) {
        part.end = std::min(part.first + kPart, size);
        parts.push_back(part);
      }
    }
    in_shares(context, parts.size(), kPart, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) move(parts[p], this->rules_);
    });
  }

 private:
  static constexpr int kKinds = UpdateRules<Rule>::kKinds;

  // A part of a variable: weights and slots before and after the update, and the gradient.
  struct Part {
    std::array<const float*, kKinds> from;
    std::array<float*, kKinds> to;
    const float* g;
    float rate, decay, divisor;
    int64_t first, end;
  };

  // The results may be written to the arrays of the arguments.
  static void move(const Part part, const Rule rule) {
#pragma GCC ivdep
    for (int64_t k = part.first; k < part.end; ++k) {
      const float w = part.from[0][k];
      float g = part.g[k];
      if constexpr (UpdateRules<Rule>::kDecays) {
        if (part.decay != 0) g += w * part.decay;  // adding 0 would change the sign of zeros
        if (part.divisor != 1) g /= part.divisor;
      }
      std::array<float, Rule::kSlots> slots;
      for (int slot = 0; slot < Rule::kSlots; ++slot) slots[slot] = part.from[1 + slot][k];
      part.to[0][k] = rule.moved(w, g, part.rate, slots);
      for (int slot = 0; slot < Rule::kSlots; ++slot) part.to[1 + slot][k] = slots[slot];
    }
  }
};

using MomentumUpdate = Update<Momentum>;
using RmsPropUpdate = Update<RmsProp>;
using AverageUpdate = Update<Average>;

NATIVE_OPERATION(MomentumUpdate)
    .Input("weights: count * float").Input("momenta: count * float").Input("gradients: count * float")
    .Input("rate: float").Input("decays: float").Input("divisor: float")
    .Attr("count: int >= 1").Attr("momentum: float")
    .Output("new_weights: count * float").Output("new_momenta: count * float");

NATIVE_OPERATION(RmsPropUpdate)
    .Input("weights: count * float").Input("squares: count * float").Input("momenta: count * float")
    .Input("gradients: count * float").Input("rate: float").Input("decays: float").Input("divisor: float")
    .Attr("count: int >= 1").Attr("momentum: float").Attr("share: float").Attr("epsilon: float")
    .Output("new_weights: count * float").Output("new_squares: count * float").Output("new_momenta: count * float");

NATIVE_OPERATION(AverageUpdate)
    .Input("averages: count * float").Input("values: count * float").Input("shares: float").Attr("count: int >= 1")
    .Output("new_averages: count * float");

}  // namespace
}  // namespace native
