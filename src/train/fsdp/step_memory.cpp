#include "train/fsdp/step_memory.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/checked.hpp"

namespace accel::train {
namespace {

/// Something that is counted as it comes and goes.
struct Level {
  std::uint64_t now = 0;
  std::uint64_t most = 0;

  void add(std::uint64_t amount) {
    now = checked_add(now, amount);
    most = std::max(most, now);
  }
};

class Step {
 public:
  explicit Step(const StepOptions& options) : options_(options) {}

  StepMemory run(const StepUnit& root) {
    if (options_.accumulates) run_micro_step(root, /*reduce=*/false);
    run_micro_step(root, /*reduce=*/true);
    StepMemory memory{parameters_.most, gradients_.most, 0, units_.most};
    for (const auto& [bytes, blocks] : blocks_)
      memory.pool_bytes = checked_add(memory.pool_bytes, checked_mul(bytes, blocks.most));
    return memory;
  }

 private:
  void run_micro_step(const StepUnit& root, bool reduce) {
    reduce_ = reduce;
    forward(root, /*is_root=*/true);
    backward(root);
    free_last();
    while (!reducing_.empty()) finish_oldest();
  }

  void forward(const StepUnit& unit, bool is_root) {
    unshard(unit);
    for (const StepUnit& inner : unit.inner) forward(inner, false);
    if (options_.reshard_after_forward && !is_root) reshard(unit);
  }

  void backward(const StepUnit& unit) {
    unshard(unit);
    free_last();
    if (!unit.inner.empty()) begin_gradients(unit);
    for (auto inner = unit.inner.rbegin(); inner != unit.inner.rend(); ++inner) backward(*inner);
    begin_gradients(unit);
    if (reduce_) reduce(unit);
    free_last();
    last_ = &unit;
  }

  void unshard(const StepUnit& unit) {
    if (unit.buffers.empty() || !unsharded_.insert(&unit).second) return;
    units_.add(1);
    for (const StepBuffer& buffer : unit.buffers) {
      parameters_.add(buffer.bytes);
      blocks_[buffer.bytes].add(1);
    }
  }

  void reshard(const StepUnit& unit) {
    if (unsharded_.erase(&unit) == 0) return;
    --units_.now;
    for (const StepBuffer& buffer : unit.buffers) {
      parameters_.now -= buffer.bytes;
      --blocks_[buffer.bytes].now;
    }
  }

  /// The unit whose backward is done, and whose parameters are freed once the next one has gathered its own.
  void free_last() {
    if (last_ != nullptr) reshard(*last_);
    last_ = nullptr;
  }

  void begin_gradients(const StepUnit& unit) {
    if (!with_gradients_.insert(&unit).second) return;
    for (const StepBuffer& buffer : unit.buffers) {
      if (!buffer.trainable) continue;
      gradients_.add(buffer.bytes);
      blocks_[buffer.bytes].add(1);
    }
  }

  void reduce(const StepUnit& unit) {
    with_gradients_.erase(&unit);
    for (const StepBuffer& buffer : unit.buffers) {
      if (!buffer.trainable) continue;
      while (reducing_.size() >= kMaxReducing) finish_oldest();
      reducing_.push_back(buffer.bytes);
    }
  }

  void finish_oldest() {
    gradients_.now -= reducing_.front();
    --blocks_[reducing_.front()].now;
    reducing_.pop_front();
  }

  StepOptions options_;
  bool reduce_ = true;
  Level units_;
  Level parameters_;
  Level gradients_;
  std::map<std::uint64_t, Level> blocks_;  // Of the pool, by size.
  std::set<const StepUnit*> unsharded_;
  std::set<const StepUnit*> with_gradients_;
  const StepUnit* last_ = nullptr;
  std::deque<std::uint64_t> reducing_;
};

}  // namespace

StepMemory memory_of_step(const StepUnit& root, const StepOptions& options) {
  return Step(options).run(root);
}

}  // namespace accel::train
