// FP32 onto FP16's grid, to the nearest or at random, in one pass and in place where the input is not needed any more.
//
// Steps and their order are those of emulator/layers/half.py and base/draws.py, and so is every bit: FP32's own arithmetic is
// exact in each of them but the one that rounds. An instruction that converts to FP16 would not keep the bits of a NaN, nor
// be faster than memory is.

#include <cmath>
#include <limits>
#include <string>

#include "emulator/native/blocks.h"

namespace native {
namespace {

constexpr int64_t kPart = 8192;  // elements, which a thread takes at once
constexpr int32_t kFraction = 23, kDropped = 13;
constexpr int32_t kSmallestExponent = (127 - 14) << kFraction, kBeyondExponent = (127 + 16) << kFraction;
constexpr uint32_t kSign = 0x80000000u;
constexpr float kLargest = 65504.0f;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

inline float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }

inline int32_t exponent_of(uint32_t bits) {
  const int32_t exponent = bits & 0x7F800000;
  const int32_t normal = exponent < kSmallestExponent ? kSmallestExponent : exponent;
  return normal > kBeyondExponent ? kBeyondExponent : normal;
}

inline float finished(float y, float beyond, uint32_t bits) {
  return as_float(as_bits(y > kLargest ? beyond : y) | (bits & kSign));
}

inline float to_nearest(float x, float beyond) {
  const uint32_t bits = as_bits(x);
  const float shifter = as_float(exponent_of(bits) + ((kDropped << kFraction) | (1 << (kFraction - 1))));
  return finished((as_float(bits & ~kSign) + shifter) - shifter, beyond, bits);
}

// `uniform`: in [0, 1).
inline float at_random(float x, float uniform, float beyond) {
  const uint32_t bits = as_bits(x);
  const float step = as_float(exponent_of(bits) - ((kFraction - kDropped) << kFraction));
  const float steps = as_float(bits & ~kSign) / step;
  const float below = std::floor(steps);
  return finished((below + (uniform < steps - below ? 1.0f : 0.0f)) * step, beyond, bits);
}

// draws.bits(salt, noise)
inline uint64_t word_of(uint64_t salt, uint64_t noise) {
  uint64_t z = salt + kGolden * (noise + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// draws.uniform_of_words
inline float uniform_of(uint32_t low, uint32_t high, uint32_t place) {
  uint32_t z = place * static_cast<uint32_t>(kGolden >> 32) + low;
  z = (z ^ (z >> 16)) * 0x21F0AAADu;
  z = (z ^ (z >> 15)) * 0x735A2D97u;
  z = z ^ (z >> 15) ^ high;
  z = (z ^ (z >> 16)) * 0x21F0AAADu;
  return static_cast<float>(static_cast<int32_t>((z ^ (z >> 15)) >> 8)) * 0x1p-24f;
}

// y may be x.
void round_part(const float* x, int64_t size, float beyond, float* y) {
#pragma GCC ivdep
  for (int64_t k = 0; k < size; ++k) y[k] = to_nearest(x[k], beyond);
}

void round_part(const float* x, int64_t size, float beyond, uint64_t word, uint32_t place, float* y) {
  const uint32_t low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
#pragma GCC ivdep
  for (int32_t k = 0; k < static_cast<int32_t>(size); ++k) {
    y[k] = at_random(x[k], uniform_of(low, high, place + static_cast<uint32_t>(k)), beyond);
  }
}

class Rounding : public OpKernel {
 public:
  explicit Rounding(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("salt", &salt_));
    OP_REQUIRES_OK(construction, construction->GetAttr("beyond", &beyond_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const bool random = context->num_inputs() > 1;
    const Tensor* noise = random ? &context->input(1) : nullptr;
    const bool by_sample = random && noise->dims() > 0 && input.dims() > 0;
    const int64_t size = input.NumElements(), rows = by_sample ? input.dim_size(0) : 1;
    OP_REQUIRES(context, !random || noise->NumElements() == rows, InvalidArgument("noise is one number for each sample"));
    Tensor* output;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, input.shape(), &output));
    if (size == 0) return;
    const float* x = input.flat<float>().data();
    float* y = output->flat<float>().data();
    const uint64_t* numbers = random ? noise->flat<tensorflow::uint64>().data() : nullptr;
    const int64_t row = size / rows, parts = (row + kPart - 1) / kPart;
    auto some = [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t sample = k / parts, first = k % parts * kPart, start = sample * row + first;
        const int64_t own = std::min(kPart, row - first);
        if (random) {
          const uint64_t word = word_of(salt_, numbers[sample]);
          round_part(x + start, own, beyond_, word, static_cast<uint32_t>(first), y + start);
        } else {
          round_part(x + start, own, beyond_, y + start);
        }
      }
    };
    auto* threads = context->device()->tensorflow_cpu_worker_threads();
    const int64_t cost = std::min(kPart, row) * (random ? 2 : 1);
    tensorflow::Shard(threads->num_threads, threads->workers, rows * parts, cost, some);
  }

 private:
  tensorflow::int64 salt_ = 0;
  float beyond_ = 0;
};

REGISTER_OP("EmulatorRounding")
    .Input("x: float").Input("noise: count * uint64")
    .Attr("count: int >= 0").Attr("salt: int").Attr("beyond: float")
    .Output("y: float")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      return tensorflow::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("EmulatorRounding").Device(tensorflow::DEVICE_CPU), Rounding);

}  // namespace
}  // namespace native
