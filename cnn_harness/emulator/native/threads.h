// Shares work among the threads of an operation's device. If memory runs out on a thread, the calling thread throws
// std::bad_alloc after all threads have ended their work; CheckedKernel makes it the operation's error.

#ifndef EMULATOR_NATIVE_THREADS_H_
#define EMULATOR_NATIVE_THREADS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <thread>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace native {

constexpr int64_t kWorthAThread = 20000;  // Each thread must have at least this many nanoseconds of work.
constexpr int64_t kSharesOfThread = 8;    // A thread has 8 shares on average, so that a thread that wakes late takes fewer.
constexpr int kPatience = 2000;           // A waiting thread checks this many times before it yields the processor.

// Calls `work` on any thread, and keeps the exception for too little memory, because no exception may leave a thread of
// TensorFlow. After that, it skips the remaining work.
template <typename Work>
class Guarded {
 public:
  explicit Guarded(const Work& work) : work_(work) {}

  void operator()(int64_t begin, int64_t end) {
    if (starved_) return;
    try {
      work_(begin, end);
    } catch (const std::bad_alloc&) {
      starved_ = true;
    }
  }

  void rethrow() const {
    if (starved_) throw std::bad_alloc();
  }

 private:
  const Work& work_;
  std::atomic<bool> starved_{false};
};

// Calls `work(begin, end)` for ranges of `count` items on the threads of the operation's device. TensorFlow's thread pool
// divides the items. `nanoseconds` is the rough time of one item.
template <typename Work>
void in_threads(tensorflow::OpKernelContext* context, int64_t count, int64_t nanoseconds, const Work& work) {
  auto* pool = context->device()->tensorflow_cpu_worker_threads();
  Guarded guarded(work);
  tensorflow::Shard(pool->num_threads, pool->workers, count, nanoseconds, std::ref(guarded));
  guarded.rethrow();
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
  Guarded guarded(work);
  auto take = [shares, shared = &guarded, count, size] {
    for (int64_t begin; (begin = shares->next.fetch_add(size)) < count;) {
      const int64_t end = std::min(begin + size, count);
      (*shared)(begin, end);
      shares->done.fetch_add(end - begin, std::memory_order_release);
    }
  };
  try {
    for (int64_t k = 1; k < threads; ++k) pool->workers->Schedule(take);
  } catch (const std::bad_alloc&) {  // the threads that started, and this one, take all shares
  }
  take();
  for (int looks = 0; shares->done.load(std::memory_order_acquire) < count; ++looks) {
    if (looks >= kPatience) std::this_thread::yield();
  }
  guarded.rethrow();
}

}  // namespace native

#endif  // EMULATOR_NATIVE_THREADS_H_
