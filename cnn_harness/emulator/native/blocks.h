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

// A block of pixels. `row` is the part of the batch to which its sample belongs. `first` is the index of its first element in
// the sample, `start` in the tensor. It has `size` elements.
struct Block {
  int64_t sample, block, row, first, start, pixels, size;
};

// How a tensor is divided into parts of the batch, and each sample into blocks.
struct Walk {
  explicit Walk(const Tensor& x, int64_t rows = 0)  // 0 means that every sample is a part
      : batch(x.dim_size(0)), pixels(x.dim_size(1) * x.dim_size(2)), channels(x.dim_size(3)), rows(rows ? rows : batch),
        samples(rows ? batch / rows : 1), blocks((pixels + kBlockPixels - 1) / kBlockPixels) {}

  int64_t sample_size() const { return pixels * channels; }

  // Return the index of the first element of a block in its sample, and the number of pixels in the block.
  int64_t start_of(int64_t block) const { return block * kBlockPixels * channels; }
  int64_t pixels_of(int64_t block) const { return std::min(kBlockPixels, pixels - block * kBlockPixels); }

  // Returns a block of the tensor. The blocks of a sample are neighbours.
  Block block(int64_t k) const {
    const int64_t sample = k / blocks, block = k % blocks, first = start_of(block), own = pixels_of(block);
    return {sample, block, sample / samples, first, sample * sample_size() + first, own, own * channels};
  }

  const int64_t batch, pixels, channels, rows, samples, blocks;
};

// The work on every block, and the work on a part of the batch after its blocks: it turns the sums of blocks into factors for
// the next phase.
struct Phase {
  std::function<void(const Block& block)> blocks;
  std::function<void(int64_t row)> then;
};

// Runs the phases on the threads of the operation's device. If each sample has its own sums, and there are enough samples, one
// thread runs all phases of a sample. Each phase then finds its data in the cache. Otherwise the threads share each phase.
// `cost` is a rough number of nanoseconds for one element.
inline void run(OpKernelContext* context, const Walk& walk, int64_t cost, const std::vector<Phase>& phases) {
  auto do_rows = [&](const Phase& phase, int64_t begin, int64_t end) {
    for (int64_t row = begin; phase.then && row < end; ++row) phase.then(row);
  };
  auto do_blocks = [&](const Phase& phase, int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) phase.blocks(walk.block(k));
  };
  if (phases[0].then && walk.samples == 1 && walk.rows >= context->device()->tensorflow_cpu_worker_threads()->num_threads) {
    return in_threads(context, walk.rows, walk.sample_size() * cost, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (const Phase& phase : phases) {
          do_blocks(phase, row * walk.blocks, (row + 1) * walk.blocks);
          do_rows(phase, row, row + 1);
        }
      }
    });
  }
  for (const Phase& phase : phases) {
    in_threads(context, walk.batch * walk.blocks, kBlockPixels * walk.channels * cost,
               [&](int64_t begin, int64_t end) { do_blocks(phase, begin, end); });
    do_rows(phase, 0, walk.rows);
  }
}

// The sums of every block of every sample, for each channel. There are several kinds of sums.
class BlockSums {
 public:
  explicit BlockSums(const Walk& walk, int64_t kinds = 1)
      : walk_(walk), kinds_(kinds), sums_(walk.batch * walk.blocks * kinds * walk.channels) {}

  // Returns the sums of a block. The kinds are neighbours.
  float* of(int64_t sample, int64_t block) { return &sums_[(sample * walk_.blocks + block) * kinds_ * walk_.channels]; }

  // Returns the sums over a part of the batch, for each channel.
  std::vector<double> total(int64_t row, int64_t kind = 0) const {
    std::vector<double> sums(walk_.channels, 0.0);
    for (int64_t k = row * walk_.samples * walk_.blocks; k < (row + 1) * walk_.samples * walk_.blocks; ++k) {
      const float* own = &sums_[(k * kinds_ + kind) * walk_.channels];
      for (int64_t c = 0; c < walk_.channels; ++c) sums[c] += own[c];
    }
    return sums;
  }

 private:
  const Walk walk_;
  const int64_t kinds_;
  std::vector<float> sums_;
};

}  // namespace native

#endif  // EMULATOR_NATIVE_BLOCKS_H_
