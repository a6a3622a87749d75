// The update of many variables by one operation: of some hundred small ones, most of the time would go into beginning them.

#include <vector>

#include "emulator/native/blocks.h"
#include "emulator/native/threads.h"

namespace native {
namespace {

constexpr int64_t kPart = 4096;  // elements, which a thread takes at once

// A variable's numbers, and where the results go.
struct Variable {
  const float *w, *a, *g;
  float *new_w, *new_a;
  int64_t size;
};

// InvalidArgument unless the inputs begin with `rows` lists of `count` tensors, of the same shapes.
absl::Status check_shapes(OpKernelContext* context, int count, int rows) {
  for (int k = count; k < count * rows; ++k) {
    if (context->input(k).shape() != context->input(k % count).shape()) {
      return InvalidArgument("the tensors of a variable have one shape");
    }
  }
  return absl::OkStatus();
}

absl::Status set_output_shapes(InferenceContext* context) {
  for (int k = 0; k < context->num_outputs(); ++k) context->set_output(k, context->input(k));
  return absl::OkStatus();
}

// Output `k`, of the shape of input `k`, in the place of one of the `inputs` that is not needed any more.
absl::Status allocate(OpKernelContext* context, const std::vector<int>& inputs, int k, float** output) {
  Tensor* tensor;
  TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output(inputs, k, context->input(k).shape(), &tensor));
  *output = tensor->flat<float>().data();
  return absl::OkStatus();
}

// Calls `update(k, first, size)` for parts of every variable k, on the threads of the operation's device.
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

// The results may be in the places of the arguments.
void move(const Variable& of, int64_t first, int64_t size, float momentum, float rate, float decay) {
  const float *w = of.w + first, *a = of.a + first, *g = of.g + first;
  float *new_w = of.new_w + first, *new_a = of.new_a + first;
  if (decay == 0) {  // a gradient keeps the sign of its zeros
#pragma GCC ivdep
    for (int64_t k = 0; k < size; ++k) {
      const float moved = momentum * a[k] + g[k];
      new_w[k] = w[k] - rate * moved;
      new_a[k] = moved;
    }
    return;
  }
#pragma GCC ivdep
  for (int64_t k = 0; k < size; ++k) {
    const float moved = momentum * a[k] + (g[k] + w[k] * decay);
    new_w[k] = w[k] - rate * moved;
    new_a[k] = moved;
  }
}

class MomentumUpdate : public OpKernel {
 public:
  explicit MomentumUpdate(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("momentum", &momentum_));
  }

  void Compute(OpKernelContext* context) override {
    const int count = context->num_outputs() / 2;
    const Tensor &rate = context->input(3 * count), &decays = context->input(3 * count + 1);
    OP_REQUIRES_OK(context, check_shapes(context, count, 3));
    OP_REQUIRES(context, rate.NumElements() == 1 && decays.NumElements() == count,
                InvalidArgument("there is one rate, and one decay for each variable"));
    std::vector<Variable> variables(count);
    for (int k = 0; k < count; ++k) {
      auto data = [&](int row) { return context->input(row * count + k).flat<float>().data(); };
      Variable& own = variables[k];
      own.w = data(0), own.a = data(1), own.g = data(2), own.size = context->input(k).NumElements();
      OP_REQUIRES_OK(context, allocate(context, {k}, k, &own.new_w));
      OP_REQUIRES_OK(context, allocate(context, {2 * count + k, count + k}, count + k, &own.new_a));
    }
    const float own_rate = rate.flat<float>()(0);
    const float* own_decays = decays.flat<float>().data();
    in_parts(context, variables, [&](int64_t k, int64_t first, int64_t size) {
      move(variables[k], first, size, momentum_, own_rate, own_decays[k]);
    });
  }

 private:
  float momentum_;
};

REGISTER_OP("EmulatorMomentumUpdate")
    .Input("weights: count * float").Input("momenta: count * float").Input("gradients: count * float")
    .Input("rate: float").Input("decays: float")
    .Attr("count: int >= 1").Attr("momentum: float")
    .Output("new_weights: count * float").Output("new_momenta: count * float")
    .SetShapeFn(set_output_shapes);
REGISTER_KERNEL_BUILDER(Name("EmulatorMomentumUpdate").Device(tensorflow::DEVICE_CPU), MomentumUpdate);

class AverageUpdate : public OpKernel {
 public:
  explicit AverageUpdate(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("shares", &shares_));
  }

  void Compute(OpKernelContext* context) override {
    const int count = context->num_outputs();
    OP_REQUIRES_OK(context, check_shapes(context, count, 2));
    OP_REQUIRES(context, static_cast<int>(shares_.size()) == count, InvalidArgument("there is one share for each variable"));
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
      for (int64_t k = first; k < first + size; ++k) own.new_w[k] = own.w[k] - (own.w[k] - own.g[k]) * shares_[v];
    });
  }

 private:
  std::vector<float> shares_;
};

REGISTER_OP("EmulatorAverageUpdate")
    .Input("averages: count * float").Input("values: count * float")
    .Attr("count: int >= 1").Attr("shares: list(float)")
    .Output("new_averages: count * float")
    .SetShapeFn(set_output_shapes);
REGISTER_KERNEL_BUILDER(Name("EmulatorAverageUpdate").Device(tensorflow::DEVICE_CPU), AverageUpdate);

}  // namespace
}  // namespace native
