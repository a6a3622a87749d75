// Iterates over a tensor [batch, height, width, channels] in blocks of pixels, on the threads of the operation's device.
//
// Sums within a block are FP32. The sums of blocks are added in double precision and in a fixed order. So neither the number
// of threads nor other samples of a micro-batch change any bit of a sample's sums.

#ifndef EMULATOR_NATIVE_BLOCKS_H_
#define EMULATOR_NATIVE_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "emulator/native/checks.h"
#include "emulator/native/threads.h"
#include "tensorflow/core/framework/tensor.h"

namespace native {

using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kBlockPixels = 128;

// Returns the numbers of input `k`.
inline const float* numbers(OpKernelContext* context, int k) { return context->input(k).flat<float>().data(); }

// Allocates the FP32 outputs from number `first` on, one for each shape, and sets pointers to their numbers.
inline absl::Status allocate(OpKernelContext* context, const std::vector<std::pair<TensorShape, float**>>& outputs,
                             int first = 0) {
  for (size_t k = 0; k < outputs.size(); ++k) {
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(first + k, outputs[k].first, &output));
    *outputs[k].second = output->flat<float>().data();
  }
  return absl::OkStatus();
}

// How a tensor is divided into blocks.
struct Walk {
  Walk() : batch(0), pixels(0), channels(0), blocks(0) {}
  explicit Walk(const Tensor& x)
      : batch(x.dim_size(0)), pixels(x.dim_size(1) * x.dim_size(2)), channels(x.dim_size(3)),
        blocks((pixels + kBlockPixels - 1) / kBlockPixels) {}

  int64_t sample_size() const { return pixels * channels; }

  // Return the index of the first element of a block in its sample, and the number of pixels in the block.
  int64_t start_of(int64_t block) const { return block * kBlockPixels * channels; }
  int64_t pixels_of(int64_t block) const { return std::min(kBlockPixels, pixels - block * kBlockPixels); }

  int64_t batch, pixels, channels, blocks;
};

// The work on one block. `first` is the index of the block's first element in the sample, `pixels` the block's size.
using BlockStep = std::function<void(int64_t sample, int64_t block, int64_t first, int64_t pixels)>;

// The work after all blocks of a sample: it turns the sums of blocks into factors for the next phase.
using SampleStep = std::function<void(int64_t sample)>;

struct Phase {
  BlockStep blocks;
  SampleStep then;
};

// Runs the phases on the threads of the operation's device. If there are enough samples, one thread runs all phases of a
// sample, because each phase then finds its data in the cache. If there are fewer samples than threads, the threads share
// each phase. `cost` is a rough number of nanoseconds for one element.
inline void run(OpKernelContext* context, const Walk& walk, const std::vector<Phase>& phases, int64_t cost) {
  auto do_blocks = [&](const Phase& phase, int64_t sample, int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      phase.blocks(sample, block, walk.start_of(block), walk.pixels_of(block));
    }
  };
  if (walk.batch >= context->device()->tensorflow_cpu_worker_threads()->num_threads) {
    in_threads(context, walk.batch, walk.sample_size() * cost, [&](int64_t begin, int64_t end) {
      for (int64_t sample = begin; sample < end; ++sample) {
        for (const Phase& phase : phases) {
          do_blocks(phase, sample, 0, walk.blocks);
          if (phase.then) phase.then(sample);
        }
      }
    });
    return;
  }
  for (int64_t sample = 0; sample < walk.batch; ++sample) {
    for (const Phase& phase : phases) {
      in_threads(context, walk.blocks, kBlockPixels * walk.channels * cost,
                 [&](int64_t begin, int64_t end) { do_blocks(phase, sample, begin, end); });
      if (phase.then) phase.then(sample);
    }
  }
}

// Runs one step over the blocks of all samples.
inline void run(OpKernelContext* context, const Walk& walk, const BlockStep& step, int64_t cost) {
  in_threads(context, walk.batch * walk.blocks, kBlockPixels * walk.channels * cost, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t block = k % walk.blocks;
      step(k / walk.blocks, block, walk.start_of(block), walk.pixels_of(block));
    }
  });
}

// The sums of every block of every sample, for each channel.
class BlockSums {
 public:
  explicit BlockSums(const Walk& walk) : walk_(walk), sums_(walk.batch * walk.blocks * walk.channels) {}

  float* of(int64_t sample, int64_t block) { return &sums_[(sample * walk_.blocks + block) * walk_.channels]; }
  const float* of(int64_t sample, int64_t block) const {
    return &sums_[(sample * walk_.blocks + block) * walk_.channels];
  }

  // Returns the sums over `samples` samples, beginning with `sample`, for each channel.
  std::vector<double> total(int64_t sample, int64_t samples = 1) const {
    std::vector<double> sums(walk_.channels, 0.0);
    for (int64_t k = sample * walk_.blocks; k < (sample + samples) * walk_.blocks; ++k) {
      const float* own = &sums_[k * walk_.channels];
      for (int64_t c = 0; c < walk_.channels; ++c) sums[c] += own[c];
    }
    return sums;
  }

 private:
  const Walk walk_;
  std::vector<float> sums_;
};

// A row of channels for every sample, or for every part of the batch.
class Rows {
 public:
  Rows(int64_t rows, int64_t channels) : channels_(channels), values_(rows * channels) {}
  float* of(int64_t row) { return &values_[row * channels_]; }

 private:
  int64_t channels_;
  std::vector<float> values_;
};

}  // namespace native

#endif  // EMULATOR_NATIVE_BLOCKS_H_
