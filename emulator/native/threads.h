// Shares work among the threads of an operation's device.

#ifndef EMULATOR_NATIVE_THREADS_H_
#define EMULATOR_NATIVE_THREADS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace native {

constexpr int64_t kWorthAThread = 20000;  // Each thread must have at least this many nanoseconds of work.
constexpr int64_t kSharesOfThread = 8;    // A thread has 8 shares on average, so that a thread that wakes late takes fewer.
constexpr int kPatience = 2000;           // A waiting thread checks this many times before it yields the processor.

// Calls `work(begin, end)` for ranges of `count` items on the threads of the operation's device. TensorFlow's thread pool
// divides the items. `nanoseconds` is the rough time of one item.
template <typename Work>
void in_threads(tensorflow::OpKernelContext* context, int64_t count, int64_t nanoseconds, const Work& work) {
  auto* pool = context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(pool->num_threads, pool->workers, count, nanoseconds, work);
}

// Calls `work(begin, end)` for ranges of `count` items, as in_threads does, but never waits for threads to wake up. The
// calling thread begins at once, and takes shares until none is left.
template <typename Work>
void in_shares(tensorflow::OpKernelContext* context, int64_t count, int64_t nanoseconds, const Work& work) {
  auto* pool = context->device()->tensorflow_cpu_worker_threads();
  const int64_t threads = std::min<int64_t>({pool->num_threads, count, count * nanoseconds / kWorthAThread});
  if (threads <= 1) {
    if (count > 0) work(0, count);
    return;
  }
  struct Shares {
    std::atomic<int64_t> next{0}, done{0};
  };
  const auto shares = std::make_shared<Shares>();  // threads may wake after this call, so `shares` must outlive it
  const int64_t size = std::max<int64_t>(count / (threads * kSharesOfThread), 1);
  const Work* const shared = &work;
  auto take = [shares, shared, count, size] {
    for (int64_t begin; (begin = shares->next.fetch_add(size)) < count;) {
      const int64_t end = std::min(begin + size, count);
      (*shared)(begin, end);
      shares->done.fetch_add(end - begin, std::memory_order_release);
    }
  };
  for (int64_t k = 1; k < threads; ++k) pool->workers->Schedule(take);
  take();
  for (int looks = 0; shares->done.load(std::memory_order_acquire) < count; ++looks) {
    if (looks >= kPatience) std::this_thread::yield();
  }
}

}  // namespace native

#endif  // EMULATOR_NATIVE_THREADS_H_
