#include "train/fsdp/step_memory.hpp"

#include <algorithm>
#include <deque>
#include <limits>
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
    put_in_order(root);
    if (options_.accumulates) run_micro_step(root, /*reduce=*/false);
    run_micro_step(root, /*reduce=*/true);
    StepMemory memory{parameters_.most, gradients_.most, kept_.most, 0, units_.most};
    memory.arriving_bytes = most_arriving_ - std::min(most_arriving_, shard_gradients_);
    for (const auto& [bytes, blocks] : blocks_)
      memory.pool_bytes = checked_add(memory.pool_bytes, checked_mul(bytes, blocks.most));
    return memory;
  }

 private:
  void run_micro_step(const StepUnit& root, bool reduce) {
    reduce_ = reduce;
    forward(root, Place::kRoot, /*with_grad=*/true);
    backward(root, Place::kRoot);
    wanted_ = nullptr;
    free_last();
    for (const StepUnit* unit : late_) this->reduce(*unit);
    late_.clear();
    while (!reducing_.empty()) finish_oldest();
  }

  enum class Place { kRoot, kBelowRoot, kInner };

  static Place below(Place place) { return place == Place::kRoot ? Place::kBelowRoot : Place::kInner; }

  /// Whether the unit runs again in backward.
  [[nodiscard]] bool recomputes(const StepUnit& unit, Place place) const {
    return options_.recompute && unit.recomputes && place != Place::kRoot;
  }

  [[nodiscard]] bool reshards(const StepUnit& unit) const {
    return options_.reshard_after_forward && !unit.stays_gathered;
  }

  /// What runs again in backward runs without grad the first time.
  void forward(const StepUnit& unit, Place place, bool with_grad, bool recomputing = false) {
    unshard(unit);
    if (options_.forward_prefetch && !recomputing) want(place_of_.at(&unit) + 1);
    drop_kept(unit);
    for (const StepUnit& inner : unit.inner)
      forward(inner, below(place), with_grad && !recomputes(unit, place), recomputing);
    const bool is_resharded = reshards(unit) && place != Place::kRoot;
    if (is_resharded && options_.reshard_size > 0) keep(unit);
    if (!with_grad || is_resharded) reshard(unit);
  }

  void backward(const StepUnit& unit, Place place) {
    unshard(unit);
    if (options_.backward_prefetch) want(place_of_.at(&unit) - 1);
    drop_kept(unit);
    free_last();
    if (recomputes(unit, place)) {
      for (const StepUnit& inner : unit.inner)
        forward(inner, below(place), /*with_grad=*/true, /*recomputing=*/true);
    }
    if (!unit.inner.empty()) begin_gradients(unit);
    for (auto inner = unit.inner.rbegin(); inner != unit.inner.rend(); ++inner)
      backward(*inner, below(place));
    begin_gradients(unit);
    arrive(unit);
    if (reduce_ && options_.recompute && place == Place::kInner) {
      late_.push_back(&unit);
    } else if (reduce_) {
      reduce(unit);
    }
    // What ran again has a backward of its own, which ends before the one around it goes on.
    if (recomputes(unit, place)) free_last();
    last_.push_back(&unit);
  }

  void put_in_order(const StepUnit& unit) {
    place_of_.emplace(&unit, order_.size());
    order_.push_back(&unit);
    for (const StepUnit& inner : unit.inner) put_in_order(inner);
  }

  /// Gathers the unit at a place in the order of forward ahead, now or when there is room for it.
  void want(std::size_t place) {
    if (place < order_.size()) wanted_ = order_[place];
    gather_wanted();
  }

  void gather_wanted() {
    if (wanted_ != nullptr && unsharded_.size() < std::size_t{kMostUnsharded}) unshard(*wanted_);
  }

  void unshard(const StepUnit& unit) {
    if (wanted_ == &unit) wanted_ = nullptr;
    if (!unsharded_.insert(&unit).second) return;
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
    gather_wanted();
  }

  [[nodiscard]] std::uint64_t kept_bytes(const StepBuffer& buffer) const {
    return buffer.bytes / static_cast<std::uint64_t>(options_.reshard_size);
  }

  void keep(const StepUnit& unit) {
    if (!with_kept_.insert(&unit).second) return;
    for (const StepBuffer& buffer : unit.buffers) {
      kept_.add(kept_bytes(buffer));
      blocks_[kept_bytes(buffer)].add(1);
    }
  }

  // Once its own gather is waited for.
  void drop_kept(const StepUnit& unit) {
    if (with_kept_.erase(&unit) == 0) return;
    for (const StepBuffer& buffer : unit.buffers) {
      kept_.now -= kept_bytes(buffer);
      --blocks_[kept_bytes(buffer)].now;
    }
  }

  void free_last() {
    for (const StepUnit* unit : last_) reshard(*unit);
    last_.clear();
  }

  void begin_gradients(const StepUnit& unit) {
    if (!with_gradients_.insert(&unit).second) return;
    for (const StepBuffer& buffer : unit.buffers) {
      if (buffer.gradient_bytes == 0) continue;
      gradients_.add(buffer.gradient_bytes);
      blocks_[buffer.gradient_bytes].add(1);
    }
  }

  /// The last of its gradients comes.
  void arrive(const StepUnit& unit) {
    if (options_.stored_on_host) {
      most_arriving_ = std::max(most_arriving_, unit.arriving_bytes);
      return;
    }
    std::uint64_t there = checked_add(shard_gradients_, unit.arriving_bytes);
    // With one shard the flat gradient, which is there, is the shard's.
    if (options_.one_shard) there = checked_add(there, unit.shard_gradient_bytes);
    most_arriving_ = std::max(most_arriving_, there);
    if (reduce_) shard_gradients_ = checked_add(shard_gradients_, unit.shard_gradient_bytes);
  }

  void reduce(const StepUnit& unit) {
    with_gradients_.erase(&unit);
    for (const StepBuffer& buffer : unit.buffers) {
      if (buffer.gradient_bytes == 0) continue;
      while (!options_.one_shard && reducing_.size() >= kMaxReducing) finish_oldest();
      reducing_.push_back(buffer.gradient_bytes);
      if (!options_.one_shard) continue;
      while (reducing_.size() > most_waiting()) finish_oldest();
    }
  }

  /// With one shard: gradients that are complete and still unsharded.
  [[nodiscard]] std::size_t most_waiting() const {
    if (!options_.stored_on_host) return options_.averages ? std::numeric_limits<std::size_t>::max() : 0;
    return kMaxStoring * (options_.averages ? 2 : 1);
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
  Level kept_;
  std::map<std::uint64_t, Level> blocks_;  // Of the pool, by size.
  std::uint64_t shard_gradients_ = 0;      // Of the units that are done.
  std::uint64_t most_arriving_ = 0;        // With these.
  std::vector<const StepUnit*> order_;     // In which they run first.
  std::map<const StepUnit*, std::size_t> place_of_;
  const StepUnit* wanted_ = nullptr;  // The one to be gathered ahead.
  std::set<const StepUnit*> unsharded_;
  std::set<const StepUnit*> with_gradients_;
  std::set<const StepUnit*> with_kept_;
  // Whose backward is done, and whose parameters are freed once the next unit has gathered its own: one, and
  // the units around it that end with it.
  std::vector<const StepUnit*> last_;
  std::vector<const StepUnit*> late_;  // Whose gradients are reduced at the end of backward.
  std::deque<std::uint64_t> reducing_;
};

}  // namespace

StepMemory memory_of_step(const StepUnit& root, const StepOptions& options) {
  return Step(options).run(root);
}

}  // namespace accel::train
