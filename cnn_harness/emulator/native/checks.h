// Checks the shapes of inputs and the attributes of every operation, and computes the shapes of results. The same rules
// apply when a graph is built, to the shapes known then, and before a kernel begins, to the shapes of the tensors.
//
// A pattern has a letter for each axis, and equal letters mean equal sizes. A digit is a fixed size. Example: inputs "nhwc"
// and "11cf" give a result "nhwf".

#ifndef EMULATOR_NATIVE_CHECKS_H_
#define EMULATOR_NATIVE_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace native {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::errors::InvalidArgument;
using tensorflow::errors::ResourceExhausted;
using tensorflow::shape_inference::InferenceContext;

constexpr char kActivations[] = "activation: {'linear', 'relu', 'relu6', 'swish'}";
constexpr char kActivationsOrGate[] = "activation: {'linear', 'relu', 'relu6', 'swish', 'sigmoid'}";

class Shapes {
 public:
  explicit Shapes(OpKernelContext* context) : kernel_(context) {}
  explicit Shapes(InferenceContext* context) : graph_(context) {}

  // Returns the size that a letter stands for. It is negative if unknown.
  int64_t operator[](char letter) const { return sizes_[letter & 127]; }

  void set(char letter, int64_t size) { sizes_[letter & 127] = size; }

  void require(bool holds, const char* rule) {
    if (!holds) refuse(rule);
  }

  void require_positive(const std::string& letters) {
    for (char letter : letters) {
      if ((*this)[letter] == 0) refuse("axis ", std::string(1, letter), " of an input is empty");
    }
  }

  void input(int k, const std::string& pattern) {
    const Dims own = dims(k);
    if (!own.known) return;
    bool fits = own.of.size() == pattern.size();
    for (size_t axis = 0; fits && axis < pattern.size(); ++axis) {
      const int64_t size = own.of[axis], wanted = size_of(pattern[axis]);
      fits = size < 0 || wanted < 0 || size == wanted;
      if (size >= 0 && wanted < 0) set(pattern[axis], size);
    }
    if (!fits) refuse("input ", k, " has shape ", own.text(), ", which does not fit the pattern ", pattern, " and the other inputs");
  }

  // Requires that the first inputs have these patterns.
  void first_inputs(const std::vector<const char*>& patterns) {
    for (size_t k = 0; k < patterns.size(); ++k) input(k, patterns[k]);
  }

  // Requires that two inputs have the same shape.
  void equal(int k, int other) {
    const Dims own = dims(k), wanted = dims(other);
    auto fits = [](int64_t size, int64_t other) { return size < 0 || other < 0 || size == other; };
    if (!own.known || !wanted.known || std::equal(own.of.begin(), own.of.end(), wanted.of.begin(), wanted.of.end(), fits)) return;
    refuse("input ", k, " has shape ", own.text(), ", input ", other, " ", wanted.text(), "; they must be equal");
  }

  // Requires that an input has this number of elements, in any shape.
  void count(int k, int64_t elements) {
    const Dims own = dims(k);
    int64_t product = 1;
    for (int64_t size : own.of) {
      if (size < 0) return;
      product *= size;
    }
    if (own.known && elements >= 0 && product != elements) refuse("input ", k, " has shape ", own.text(), "; it must have ", elements, " numbers");
  }

  // Returns the size of an input's first axis. It is 1 for a scalar, and negative if unknown.
  int64_t first_axis(int k) const {
    const Dims own = dims(k);
    return !own.known ? -1 : own.of.empty() ? 1 : own.of[0];
  }

  bool has_axes(int k) const { return !dims(k).of.empty(); }

  // Requires whole = part * parts. If only one of `whole` and `part` is known, sets the other.
  void divide(char whole, char part, int64_t parts) {
    int64_t product = -1;
    if ((*this)[whole] >= 0) {
      const int64_t size = (*this)[whole] / parts;
      if (size * parts != (*this)[whole]) refuse("an axis of ", (*this)[whole], " cannot be divided by ", parts);
      require((*this)[part] < 0 || (*this)[part] == size, "the inputs have different numbers of channels");
      set(part, size);
    } else if ((*this)[part] >= 0) {
      require(!__builtin_mul_overflow((*this)[part], parts, &product), "an axis is too long");
      set(whole, product);
    }
  }

  // Sets height and width of the result of a convolution with SAME padding.
  void stride(const char (&from)[3], const char (&to)[3], int64_t stride) {
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t size = (*this)[from[axis]];
      set(to[axis], size < 0 ? -1 : size / stride + (size % stride > 0));
    }
  }

  void output(int k, const std::string& pattern) {
    if (!status_.ok()) return;
    int64_t elements = 1;
    std::vector<tensorflow::shape_inference::DimensionHandle> axes;
    for (char letter : pattern) {
      const int64_t size = size_of(letter);
      const bool fits = size < 0 || (!__builtin_mul_overflow(elements, size, &elements) && elements <= kMostElements);
      require(fits, "a result has too many numbers");
      if (graph_) axes.push_back(size < 0 ? graph_->UnknownDim() : graph_->MakeDim(size));
    }
    if (graph_) graph_->set_output(k, graph_->MakeShape(axes));
  }

  void output_as(int k, int input) {
    if (graph_) graph_->set_output(k, graph_->input(input));
  }

  int inputs() const { return graph_ ? graph_->num_inputs() : kernel_->num_inputs(); }
  int outputs() const { return graph_ ? graph_->num_outputs() : kernel_->num_outputs(); }
  const absl::Status& status() const { return status_; }

  template <typename... Words>
  void refuse(const Words&... words) {
    if (status_.ok()) status_ = InvalidArgument(words...);
  }

 private:
  static constexpr int64_t kMostElements = int64_t{1} << 40;

  struct Dims {
    std::string text() const {
      std::string text = "[";
      for (size_t k = 0; k < of.size(); ++k) text += (k ? "," : "") + (of[k] < 0 ? "?" : std::to_string(of[k]));
      return text + "]";
    }

    bool known = false;
    absl::InlinedVector<int64_t, 4> of;
  };

  Dims dims(int k) const {
    Dims dims;
    if (kernel_) {
      dims.known = true;
      for (int axis = 0; axis < kernel_->input(k).dims(); ++axis) dims.of.push_back(kernel_->input(k).dim_size(axis));
      return dims;
    }
    const auto shape = graph_->input(k);
    dims.known = graph_->RankKnown(shape);
    for (int axis = 0; dims.known && axis < graph_->Rank(shape); ++axis) dims.of.push_back(graph_->Value(graph_->Dim(shape, axis)));
    return dims;
  }

  int64_t size_of(char letter) const { return letter >= '0' && letter <= '9' ? letter - '0' : (*this)[letter]; }

  OpKernelContext* kernel_ = nullptr;
  InferenceContext* graph_ = nullptr;
  absl::Status status_;
  std::vector<int64_t> sizes_ = std::vector<int64_t>(128, -1);
};

constexpr int64_t kMostKernel = 1024;  // A convolution has at most 1024 x 1024 taps; a kernel keeps 16 bytes for each.

// Reads an attribute that is a size. `Context` is OpKernelConstruction or InferenceContext.
template <typename Context>
absl::Status read_size(Context* context, const char* name, int64_t* size, int64_t most = 1 << 20, int64_t least = 1) {
  TF_RETURN_IF_ERROR(context->GetAttr(name, size));
  const bool fits = *size >= least && *size <= most;
  return fits ? absl::OkStatus() : InvalidArgument(name, " is ", *size, "; it must be between ", least, " and ", most);
}

// Reads attributes. The arguments are names and pointers to values in turn.
template <typename Context, typename Value, typename... More>
absl::Status read_all(Context* context, const char* name, Value* value, More... more) {
  TF_RETURN_IF_ERROR(context->GetAttr(name, value));
  if constexpr (sizeof...(more) > 0) return read_all(context, more...);
  return absl::OkStatus();
}

// A kernel that applies its `Rules` before it begins: `Rules::read` reads the attributes, `Rules::check` checks the shapes. If
// memory runs out, here or on a thread, the operation ends with the same error as if it could not allocate a tensor.
template <typename Rules>
class CheckedKernel : public OpKernel {
 public:
  using Own = Rules;

  explicit CheckedKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, rules_.read(construction));
  }

  void Compute(OpKernelContext* context) final {
    try {
      Shapes shapes(context);
      rules_.check(&shapes);
      OP_REQUIRES_OK(context, shapes.status());
      compute(context);
    } catch (const std::bad_alloc&) {
      context->SetStatus(ResourceExhausted("OOM when allocating memory for the work of ", type_string()));
    }
  }

 protected:
  virtual void compute(OpKernelContext* context) = 0;

  Rules rules_;
};

// Applies the rules while a graph is built. An operation gives this function to SetShapeFn.
template <typename Rules>
absl::Status set_shapes(InferenceContext* context) {
  Rules rules;
  TF_RETURN_IF_ERROR(rules.read(context));
  Shapes shapes(context);
  rules.check(&shapes);
  return shapes.status();
}

// Registers a kernel and its operation, named like the class. Inputs, attributes and results of the operation follow.
#define NATIVE_OPERATION(Class)                                                            \
  REGISTER_KERNEL_BUILDER(Name("Emulator" #Class).Device(tensorflow::DEVICE_CPU), Class); \
  REGISTER_OP("Emulator" #Class).SetShapeFn(set_shapes<Class::Own>)

// The base class of rules that need no attributes.
struct NoAttributes {
  template <typename Context>
  absl::Status read(Context*) {
    return absl::OkStatus();
  }
};

}  // namespace native

#endif  // EMULATOR_NATIVE_CHECKS_H_
