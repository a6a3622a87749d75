// Updates many variables in one operation. If each variable had its own operation, starting hundreds of small operations
// would take most of the time.

#include <cmath>
#include <vector>

#include "emulator/native/blocks.h"

namespace native {
namespace {

constexpr int64_t kPart = 4096;  // number of elements in a work item

// A variable: weights `w`, gradient `g`, and the slots of the update rule, such as momentum. Results are written to
// `new_...`.
struct Variable {
  const float *w, *g, *slots[2];
  float *new_w, *new_slots[2];
  float decay;
  int64_t size;
};

// Checks that the inputs begin with `rows` lists of `count` tensors, and that all lists have the same shapes. Each output
// gets the shape of the input with the same index.
void check_lists(Shapes* shapes, int count, int rows) {
  for (int k = count; k < count * rows; ++k) shapes->equal(k, k % count);
  for (int k = 0; k < shapes->outputs(); ++k) shapes->output_as(k, k);
}

// Allocates output `k` with the shape of input `k`. If one of the `inputs` is not needed later, its memory is used.
absl::Status allocate(OpKernelContext* context, const std::vector<int>& inputs, int k, float** output) {
  Tensor* tensor;
  TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output(inputs, k, context->input(k).shape(), &tensor));
  *output = tensor->flat<float>().data();
  return absl::OkStatus();
}

// Divides every variable into parts, and calls `update(variable, first, size)` for each part on the threads.
template <typename Update>
void in_parts(OpKernelContext* context, const std::vector<Variable>& variables, const Update& update) {
  struct Part {
    int64_t variable, first, size;
  };
  std::vector<Part> parts;
  for (size_t k = 0; k < variables.size(); ++k) {
    for (int64_t first = 0; first < variables[k].size; first += kPart) {
      parts.push_back({static_cast<int64_t>(k), first, std::min(kPart, variables[k].size - first)});
    }
  }
  in_shares(context, parts.size(), kPart, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) update(parts[p].variable, parts[p].first, parts[p].size);
  });
}

// Returns (g + w * decay) / divisor for a part of a variable. The result is in `room`, or it is g itself if nothing changes.
const float* whole_gradient(const Variable& of, int64_t first, int64_t size, float divisor, float* room) {
  const float *w = of.w + first, *g = of.g + first;
  const float decay = of.decay;
  if (decay != 0) {  // adding 0 would change the sign of zeros
#pragma GCC ivdep
    for (int64_t k = 0; k < size; ++k) room[k] = g[k] + w[k] * decay;
    g = room;
  }
  if (divisor == 1) return g;
#pragma GCC ivdep
  for (int64_t k = 0; k < size; ++k) room[k] = g[k] / divisor;
  return room;
}

// Momentum: a = momentum * a + g; w -= rate * a. `a` is the slot.
struct Momentum {
  static constexpr int kSlots = 1;

  template <typename Context>
  absl::Status read(Context* context) {
    return context->GetAttr("momentum", &momentum);
  }

  // The results may be written to the arrays of the arguments.
  void move(const Variable& of, int64_t first, int64_t size, float rate, const float* g) const {
    const float *w = of.w + first, *a = of.slots[0] + first, own = momentum;
    float *new_w = of.new_w + first, *new_a = of.new_slots[0] + first;
#pragma GCC ivdep
    for (int64_t k = 0; k < size; ++k) {
      const float moved = own * a[k] + g[k];
      new_w[k] = w[k] - rate * moved;
      new_a[k] = moved;
    }
  }

  float momentum = 0;
};

// RMSprop: square += (g^2 - square) * share; a = momentum * a + rate * g / sqrt(square + epsilon); w -= a. `square` and `a`
// are the slots.
struct RmsProp {
  static constexpr int kSlots = 2;

  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("momentum", &momentum));
    TF_RETURN_IF_ERROR(context->GetAttr("share", &share));
    return context->GetAttr("epsilon", &epsilon);
  }

  void move(const Variable& of, int64_t first, int64_t size, float rate, const float* g) const {
    const float *w = of.w + first, *square = of.slots[0] + first, *a = of.slots[1] + first;
    float *new_w = of.new_w + first, *new_square = of.new_slots[0] + first, *new_a = of.new_slots[1] + first;
    const RmsProp own = *this;
#pragma GCC ivdep
    for (int64_t k = 0; k < size; ++k) {
      const float mean = square[k] + (g[k] * g[k] - square[k]) * own.share;
      const float moved = own.momentum * a[k] + rate * g[k] * (1 / std::sqrt(mean + own.epsilon));
      new_square[k] = mean;
      new_w[k] = w[k] - moved;
      new_a[k] = moved;
    }
  }

  float momentum = 0, share = 0, epsilon = 0;
};

// The inputs are lists with a tensor for each variable: the weights, each kind of slot, the gradients. Then follow the rate,
// the decays and the divisor. The outputs are the lists of new weights and slots.
template <typename Rule>
struct RuleRules : Rule {
  void check(Shapes* shapes) const {
    constexpr int kKinds = 1 + Rule::kSlots;
    const int count = shapes->outputs() / kKinds, more = (kKinds + 1) * count;
    check_lists(shapes, count, kKinds + 1);
    shapes->count(more, 1);
    shapes->count(more + 1, count);
    shapes->count(more + 2, 1);
  }
};

template <typename Rule>
class RuleUpdate : public CheckedKernel<RuleRules<Rule>> {
 public:
  using CheckedKernel<RuleRules<Rule>>::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    constexpr int kKinds = 1 + Rule::kSlots;  // the weights and the slots of a variable change
    const int count = context->num_outputs() / kKinds, more = (kKinds + 1) * count;
    const Tensor &rate = context->input(more), &decays = context->input(more + 1), &divisor = context->input(more + 2);
    std::vector<Variable> variables(count);
    for (int k = 0; k < count; ++k) {
      auto data = [&](int kind) { return context->input(kind * count + k).flat<float>().data(); };
      Variable& own = variables[k];
      own.w = data(0), own.g = data(kKinds), own.decay = decays.flat<float>()(k), own.size = context->input(k).NumElements();
      OP_REQUIRES_OK(context, allocate(context, {k}, k, &own.new_w));
      for (int slot = 0; slot < Rule::kSlots; ++slot) {
        own.slots[slot] = data(1 + slot);
        const int place = (1 + slot) * count + k;
        OP_REQUIRES_OK(context, allocate(context, {place, kKinds * count + k}, place, &own.new_slots[slot]));
      }
    }
    const float own_rate = rate.flat<float>()(0), own_divisor = divisor.flat<float>()(0);
    in_parts(context, variables, [&](int64_t k, int64_t first, int64_t size) {
      alignas(64) float room[kPart];
      this->rules_.move(variables[k], first, size, own_rate, whole_gradient(variables[k], first, size, own_divisor, room));
    });
  }
};

REGISTER_OP("EmulatorMomentumUpdate")
    .Input("weights: count * float").Input("momenta: count * float").Input("gradients: count * float")
    .Input("rate: float").Input("decays: float").Input("divisor: float")
    .Attr("count: int >= 1").Attr("momentum: float")
    .Output("new_weights: count * float").Output("new_momenta: count * float")
    .SetShapeFn(set_shapes<RuleRules<Momentum>>);
REGISTER_KERNEL_BUILDER(Name("EmulatorMomentumUpdate").Device(tensorflow::DEVICE_CPU), RuleUpdate<Momentum>);

REGISTER_OP("EmulatorRmsPropUpdate")
    .Input("weights: count * float").Input("squares: count * float").Input("momenta: count * float")
    .Input("gradients: count * float")
    .Input("rate: float").Input("decays: float").Input("divisor: float")
    .Attr("count: int >= 1").Attr("momentum: float").Attr("share: float").Attr("epsilon: float")
    .Output("new_weights: count * float").Output("new_squares: count * float").Output("new_momenta: count * float")
    .SetShapeFn(set_shapes<RuleRules<RmsProp>>);
REGISTER_KERNEL_BUILDER(Name("EmulatorRmsPropUpdate").Device(tensorflow::DEVICE_CPU), RuleUpdate<RmsProp>);

struct AverageRules {
  template <typename Context>
  absl::Status read(Context* context) {
    return context->GetAttr("shares", &shares);
  }

  void check(Shapes* shapes) const {
    check_lists(shapes, shapes->outputs(), 2);
    shapes->require(static_cast<int>(shares.size()) == shapes->outputs(), "there must be one share for each variable");
  }

  std::vector<float> shares;
};

class AverageUpdate : public CheckedKernel<AverageRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const int count = context->num_outputs();
    std::vector<Variable> variables(count);
    for (int k = 0; k < count; ++k) {
      Variable& own = variables[k];
      own.w = context->input(k).flat<float>().data(), own.g = context->input(count + k).flat<float>().data();
      own.size = context->input(k).NumElements();
      OP_REQUIRES_OK(context, allocate(context, {count + k, k}, k, &own.new_w));
    }
    in_parts(context, variables, [&](int64_t v, int64_t first, int64_t size) {
      const Variable& own = variables[v];
#pragma GCC ivdep
      for (int64_t k = first; k < first + size; ++k) own.new_w[k] = own.w[k] - (own.w[k] - own.g[k]) * rules_.shares[v];
    });
  }
};

REGISTER_OP("EmulatorAverageUpdate")
    .Input("averages: count * float").Input("values: count * float")
    .Attr("count: int >= 1").Attr("shares: list(float)")
    .Output("new_averages: count * float")
    .SetShapeFn(set_shapes<AverageRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorAverageUpdate").Device(tensorflow::DEVICE_CPU), AverageUpdate);

}  // namespace
}  // namespace native
