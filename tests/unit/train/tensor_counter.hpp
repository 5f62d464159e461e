#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>

namespace accel::train::testing {

/// Counts the bytes of the CPU tensors that are allocated and freed on this thread, and on the threads on
/// which autograd works for it, as libtorch's allocator reports them.
class TensorCounter {
 public:
  /// The peak of the bytes since the start or the last restart(), beyond those that existed then.
  [[nodiscard]] std::int64_t peak() const { return counts_->peak(); }
  void restart() { counts_->restart(); }

 private:
  class Counts final : public c10::MemoryReportingInfoBase {
   public:
    void reportMemoryUsage(void* /*ptr*/, std::int64_t alloc_size, std::size_t /*total_allocated*/,
                           std::size_t /*total_reserved*/, c10::Device /*device*/) override {
      const std::lock_guard lock(mutex_);
      now_ += alloc_size;
      peak_ = std::max(peak_, now_);
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
    [[nodiscard]] std::int64_t peak() {
      const std::lock_guard lock(mutex_);
      return peak_;
    }
    void restart() {
      const std::lock_guard lock(mutex_);
      now_ = peak_ = 0;
    }

   private:
    std::mutex mutex_;
    std::int64_t now_ = 0;
    std::int64_t peak_ = 0;
  };

  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counts_};
};

}  // namespace accel::train::testing
