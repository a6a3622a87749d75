// What the kernels share: the walk over a tensor [batch, height, width, channels] in blocks of pixels, and element functions.
//
// A block's sums are FP32, and the sums of a sample's blocks are added in double precision and in their order. So neither the
// number of threads nor the other samples of a pass change a bit of what a sample's sums are.

#ifndef EMULATOR_KERNELS_BLOCKS_H_
#define EMULATOR_KERNELS_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"

namespace kernels {

constexpr int64_t kBlockPixels = 128;

// A tensor's shape, as the kernels walk over it.
struct Walk {
  explicit Walk(const tensorflow::Tensor& x)
      : batch(x.dim_size(0)), pixels(x.dim_size(1) * x.dim_size(2)), channels(x.dim_size(3)),
        blocks((pixels + kBlockPixels - 1) / kBlockPixels) {}

  int64_t sample_size() const { return pixels * channels; }

  int64_t batch, pixels, channels, blocks;
};

// One step over a sample's blocks: called with the sample, the block, the first element of the block in the sample, and the
// block's number of pixels.
using BlockStep = std::function<void(int64_t sample, int64_t block, int64_t first, int64_t pixels)>;

// What follows a step once all blocks of a sample are done: sums of blocks become factors for the next step.
using SampleStep = std::function<void(int64_t sample)>;

struct Phase {
  BlockStep blocks;
  SampleStep then;
};

// Carries the phases out, on the threads of the operation's device: a sample by one thread from its first phase to its last,
// as what a phase has read is in the cache for the next one; with fewer samples than threads, phase by phase.
// `cost`: nanoseconds an element takes, roughly.
inline void run(tensorflow::OpKernelContext* context, const Walk& walk, const std::vector<Phase>& phases, int64_t cost) {
  auto* threads = context->device()->tensorflow_cpu_worker_threads();
  auto do_blocks = [&](const Phase& phase, int64_t sample, int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockPixels;
      phase.blocks(sample, block, first * walk.channels, std::min(kBlockPixels, walk.pixels - first));
    }
  };
  if (walk.batch >= threads->num_threads) {
    auto do_samples = [&](int64_t begin, int64_t end) {
      for (int64_t sample = begin; sample < end; ++sample) {
        for (const Phase& phase : phases) {
          do_blocks(phase, sample, 0, walk.blocks);
          if (phase.then) phase.then(sample);
        }
      }
    };
    tensorflow::Shard(threads->num_threads, threads->workers, walk.batch, walk.sample_size() * cost, do_samples);
    return;
  }
  for (int64_t sample = 0; sample < walk.batch; ++sample) {
    for (const Phase& phase : phases) {
      auto some = [&](int64_t begin, int64_t end) { do_blocks(phase, sample, begin, end); };
      tensorflow::Shard(threads->num_threads, threads->workers, walk.blocks, kBlockPixels * walk.channels * cost, some);
      if (phase.then) phase.then(sample);
    }
  }
}

// Sums of every block of every sample, for each channel.
class BlockSums {
 public:
  explicit BlockSums(const Walk& walk) : walk_(walk), sums_(walk.batch * walk.blocks * walk.channels) {}

  float* of(int64_t sample, int64_t block) { return &sums_[(sample * walk_.blocks + block) * walk_.channels]; }

  // The sample's sum, for each channel.
  void total(int64_t sample, float* out) {
    for (int64_t c = 0; c < walk_.channels; ++c) {
      double sum = 0;
      for (int64_t block = 0; block < walk_.blocks; ++block) sum += of(sample, block)[c];
      out[c] = static_cast<float>(sum);
    }
  }

 private:
  const Walk walk_;
  std::vector<float> sums_;
};

// e^x, to about one unit in the last place: 2^n * e^r with |r| <= ln(2) / 2, and e^r from its polynomial of degree 7. Plain
// arithmetic, which compilers vectorise.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is worth 1
  const float n = (x * 1.44269504f + kToInteger) - kToInteger;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln(2) in two parts, of which the first has few bits
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * (r * r) + r) + 1.0f;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  return p * __builtin_bit_cast(float, exponent);
}

inline float sigmoid(float z) { return 1.0f / (1.0f + exponential(-z)); }

}  // namespace kernels

#endif  // EMULATOR_KERNELS_BLOCKS_H_
