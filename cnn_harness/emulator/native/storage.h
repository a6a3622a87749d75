// Conversions between FP32 and the types of tensors, float, half and bfloat16. Numbers become narrower only after they are
// rounded, so every conversion is exact.

#ifndef EMULATOR_NATIVE_STORAGE_H_
#define EMULATOR_NATIVE_STORAGE_H_

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace native {

using Half = Eigen::half;
using BFloat = Eigen::bfloat16;

// The types of activations (T), of arriving gradients (U) and of returned gradients (V).
constexpr char kStorage[] = "T: {float, half, bfloat16} = DT_FLOAT", kArrivingStorage[] = "U: {float, half, bfloat16} = DT_FLOAT",
               kReturnedStorage[] = "V: {float, half, bfloat16} = DT_FLOAT";

inline uint16_t bfloat_bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t quiet = (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x40u : 0u;  // a NaN must not become infinity
  return static_cast<uint16_t>(bits >> 16 | quiet);
}

// Copies `count` numbers to FP32.
template <typename T>
inline void widen(const T* from, int64_t count, float* to) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(to, from, count * sizeof(float));
  } else if constexpr (std::is_same_v<T, BFloat>) {
    const uint16_t* const bits = reinterpret_cast<const uint16_t*>(from);
    for (int64_t k = 0; k < count; ++k) to[k] = __builtin_bit_cast(float, static_cast<uint32_t>(bits[k]) << 16);
  } else {
    int64_t k = 0;
#ifdef __AVX512F__
    for (; k + 16 <= count; k += 16) {
      _mm512_storeu_ps(to + k, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + k))));
    }
#endif
#ifdef __F16C__
    for (; k + 8 <= count; k += 8) {
      _mm256_storeu_ps(to + k, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k))));
    }
#endif
    for (; k < count; ++k) to[k] = static_cast<float>(from[k]);
  }
}

// Copies `count` FP32 numbers, which T must be able to hold.
template <typename T>
inline void narrow(const float* from, int64_t count, T* to) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(to, from, count * sizeof(float));
  } else if constexpr (std::is_same_v<T, BFloat>) {
    uint16_t* const bits = reinterpret_cast<uint16_t*>(to);
    for (int64_t k = 0; k < count; ++k) bits[k] = bfloat_bits(from[k]);
  } else {
    int64_t k = 0;
#ifdef __F16C__
    for (; k + 8 <= count; k += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), _mm256_cvtps_ph(_mm256_loadu_ps(from + k), 0));
    }
#endif
    for (; k < count; ++k) to[k] = static_cast<T>(from[k]);
  }
}

// Calls `work` with a null pointer of the type that `dtype` names, so that the work is compiled for this type.
template <typename Work>
void with_storage(tensorflow::DataType dtype, Work work) {
  if (dtype == tensorflow::DT_HALF) return work(static_cast<Half*>(nullptr));
  if (dtype == tensorflow::DT_BFLOAT16) return work(static_cast<BFloat*>(nullptr));
  return work(static_cast<float*>(nullptr));
}

using Scratch = std::vector<float>;

// Reads parts of a tensor as FP32.
class Reader {
 public:
  explicit Reader(const tensorflow::Tensor& tensor) : data_(tensor.data()), dtype_(tensor.dtype()) {}

  // Returns `count` numbers, beginning with `start`. If the tensor has 16-bit numbers, this is a copy of them in `room`.
  const float* read(int64_t start, int64_t count, float* room) const {
    if (dtype_ == tensorflow::DT_FLOAT) return static_cast<const float*>(data_) + start;
    with_storage(dtype_, [&](auto* type) {
      widen(static_cast<const std::remove_pointer_t<decltype(type)>*>(data_) + start, count, room);
    });
    return room;
  }

  const float* read(int64_t start, int64_t count, Scratch* scratch) const {
    return read(start, count, place(start, count, scratch));
  }

 protected:
  float* place(int64_t start, int64_t count, Scratch* scratch) const {
    if (dtype_ == tensorflow::DT_FLOAT) return static_cast<float*>(data_) + start;
    if (static_cast<int64_t>(scratch->size()) < count) scratch->resize(count);
    return scratch->data();
  }

  void* data_;
  tensorflow::DataType dtype_;
};

// Reads and writes parts of a tensor as FP32 numbers, which the tensor's type must be able to hold.
class Writer : public Reader {
 public:
  explicit Writer(tensorflow::Tensor* tensor) : Reader(*tensor) {}

  // Returns the place for `count` numbers, beginning with `start`. It is in `scratch` if the tensor has 16-bit numbers.
  float* begin(int64_t start, int64_t count, Scratch* scratch) const { return place(start, count, scratch); }

  // Returns the same place with the numbers that were written before.
  float* again(int64_t start, int64_t count, Scratch* scratch) const {
    read(start, count, scratch);
    return place(start, count, scratch);
  }

  // Stores the numbers that were written to the place that `begin` returned.
  void end(int64_t start, int64_t count, const Scratch& scratch) const {
    if (dtype_ == tensorflow::DT_FLOAT) return;
    with_storage(dtype_, [&](auto* type) {
      narrow(scratch.data(), count, static_cast<std::remove_pointer_t<decltype(type)>*>(data_) + start);
    });
  }
};

// The FP32 copies of a block of x, dy and of the result, on each thread.
struct Scratches {
  static Scratches& own() {
    static thread_local Scratches scratches;
    return scratches;
  }

  Scratch x, dy, result;
};

}  // namespace native

#endif  // EMULATOR_NATIVE_STORAGE_H_
