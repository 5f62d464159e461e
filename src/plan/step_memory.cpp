#include "plan/step_memory.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>

#include "base/checked.hpp"

namespace accel {
namespace {

/// An amount that rises and falls, and its maximum.
struct Level {
  std::uint64_t now = 0;
  std::uint64_t most = 0;

  void add(std::uint64_t amount) {
    now = checked_add(now, amount);
    most = std::max(most, now);
  }
};

/// What a unit around others computes itself, as far as memory depends on it. The structure does not tell
/// this.
struct OwnWork {
  bool in_front = true;  ///< It runs before all units inside it: its own gradients are complete after theirs.
  bool between = false;  ///< It runs between any two: in backward one is freed before the other is gathered.
};

constexpr OwnWork kWays[] = {{true, false}, {true, true}, {false, false}, {false, true}};

/// The own work of the root and of all other units around others.
struct Schedule {
  OwnWork root;
  OwnWork others;
  bool first_has_no_input_gradient = false;  ///< The first unit is freed without waiting for one.
};

class Step {
 public:
  Step(const StepOptions& options, const Schedule& schedule) : options_(options), schedule_(schedule) {}

  StepMemory run(const StepUnit& root) {
    put_in_order(root);
    if (options_.accumulates) run_micro_batch(root, /*reduce=*/false);
    run_micro_batch(root, /*reduce=*/true);
    StepMemory memory{parameters_.most, gradients_.most, group_shards_.most, 0, units_.most};
    memory.arriving_bytes = beyond_gradients(most_arriving_);
    memory.cast_bytes = beyond_gradients(most_with_casts_) - memory.arriving_bytes;
    for (const auto& [bytes, blocks] : blocks_)
      memory.pool_bytes = checked_add(memory.pool_bytes, checked_mul(bytes, blocks.most));
    return memory;
  }

 private:
  void run_micro_batch(const StepUnit& root, bool reduce) {
    reduce_ = reduce;
    forward(root, Place::kRoot, /*with_grad=*/true, order_.size());
    backward(root, Place::kRoot);
    candidate_ = nullptr;
    free_last();
    for (const StepUnit* unit : late_) this->reduce(*unit);
    late_.clear();
    while (!reducing_.empty()) finish_oldest();
  }

  enum class Place { kRoot, kBelowRoot, kInner };

  static Place below(Place place) { return place == Place::kRoot ? Place::kBelowRoot : Place::kInner; }

  /// Whether the unit is recomputed in backward.
  [[nodiscard]] bool recomputes(const StepUnit& unit, Place place) const {
    return options_.recompute && unit.recomputes && place != Place::kRoot;
  }

  [[nodiscard]] bool reshards(const StepUnit& unit) const {
    return options_.reshard_after_forward && !unit.stays_gathered;
  }

  /// A unit that is recomputed in backward runs without grad in forward. `end` is past the last unit of this
  /// run in order_: of all units, or of those inside a recomputed unit.
  void forward(const StepUnit& unit, Place place, bool with_grad, std::size_t end) {
    unshard(unit);
    const std::size_t next = place_of_.at(&unit).begin + 1;
    if (options_.forward_prefetch && next < end) prefetch(*order_[next]);
    drop_group_shard(unit);
    if (with_grad && !recomputes(unit, place)) hold_casts(unit);
    for (const StepUnit& inner : unit.inner)
      forward(inner, below(place), with_grad && !recomputes(unit, place), end);
    const bool is_resharded = reshards(unit) && place != Place::kRoot;
    if (is_resharded && options_.reshard_size > 0) keep_group_shard(unit);
    if (!with_grad || is_resharded) reshard(unit);
  }

  void backward(const StepUnit& unit, Place place, bool is_behind_work = false) {
    if (is_behind_work) free_last();
    unshard(unit);
    if (options_.backward_prefetch) prefetch_before(unit, recomputes(unit, place));
    drop_group_shard(unit);
    free_last();
    if (recomputes(unit, place)) {
      hold_casts(unit);
      for (const StepUnit& inner : unit.inner)
        forward(inner, below(place), /*with_grad=*/true, place_of_.at(&unit).inner_end);
    }
    const OwnWork& own = place == Place::kRoot ? schedule_.root : schedule_.others;
    begin_gradients(unit);
    if (!own.in_front || unit.inner.empty()) complete_gradients(unit, place);
    const bool is_first = place != Place::kRoot && place_of_.at(&unit).begin == 1;
    if (is_first && !own.in_front && schedule_.first_has_no_input_gradient) reshard(unit);
    for (auto inner = unit.inner.rbegin(); inner != unit.inner.rend(); ++inner)
      backward(*inner, below(place), own.between && inner != unit.inner.rbegin());
    if (own.in_front && !unit.inner.empty()) {
      free_last();
      complete_gradients(unit, place);
    }
    // A recomputed unit has a backward of its own, which ends before the outer backward goes on.
    if (recomputes(unit, place)) free_last();
    last_.push_back(&unit);
  }

  void complete_gradients(const StepUnit& unit, Place place) {
    arrive(unit);
    if (reduce_ && options_.recompute && place == Place::kInner) {
      late_.push_back(&unit);
    } else if (reduce_) {
      reduce(unit);
    }
  }

  void put_in_order(const StepUnit& unit) {
    const std::size_t begin = order_.size();
    order_.push_back(&unit);
    if (options_.keeps_blocks) gradients_there_ = checked_add(gradients_there_, early_gradient_bytes(unit));
    for (const StepUnit& inner : unit.inner) put_in_order(inner);
    place_of_[&unit] = {begin, order_.size(), ends_.size()};
    ends_.push_back(&unit);
  }

  /// Prefetches, in backward, the first unit inside a recomputed unit, else the unit that ended before this
  /// one.
  void prefetch_before(const StepUnit& unit, bool recomputes) {
    const InOrder& place = place_of_.at(&unit);
    if (recomputes && !unit.inner.empty()) {
      prefetch(*order_[place.begin + 1]);
    } else if (place.end > 0) {
      prefetch(*ends_[place.end - 1]);
    }
  }

  /// Makes the unit the prefetch candidate, which is gathered as soon as there is room.
  void prefetch(const StepUnit& unit) {
    candidate_ = &unit;
    gather_candidate();
  }

  void gather_candidate() {
    if (candidate_ != nullptr && unsharded_.size() < std::size_t{kMostUnsharded}) unshard(*candidate_);
  }

  void unshard(const StepUnit& unit) {
    if (candidate_ == &unit) candidate_ = nullptr;
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
    gather_candidate();
  }

  [[nodiscard]] std::uint64_t group_shard_bytes(const StepBuffer& buffer) const {
    return buffer.bytes / static_cast<std::uint64_t>(options_.reshard_size);
  }

  void keep_group_shard(const StepUnit& unit) {
    if (!with_group_shard_.insert(&unit).second) return;
    for (const StepBuffer& buffer : unit.buffers) {
      group_shards_.add(group_shard_bytes(buffer));
      blocks_[group_shard_bytes(buffer)].add(1);
    }
  }

  // Called after the unit's own gather.
  void drop_group_shard(const StepUnit& unit) {
    if (with_group_shard_.erase(&unit) == 0) return;
    for (const StepBuffer& buffer : unit.buffers) {
      group_shards_.now -= group_shard_bytes(buffer);
      --blocks_[group_shard_bytes(buffer)].now;
    }
  }

  void free_last() {
    for (const StepUnit* unit : last_) reshard(*unit);
    last_.clear();
  }

  void begin_gradients(const StepUnit& unit) {
    if (!with_gradients_.insert(&unit).second) return;
    if (!options_.keeps_blocks) gradients_there_ = checked_add(gradients_there_, early_gradient_bytes(unit));
    for (const StepBuffer& buffer : unit.buffers) {
      if (buffer.gradient_bytes == 0) continue;
      gradients_.add(buffer.gradient_bytes);
      blocks_[buffer.gradient_bytes].add(1);
    }
  }

  /// The last of the unit's gradients comes.
  void arrive(const StepUnit& unit) {
    const std::uint64_t before = options_.stored_on_host ? 0 : gradients_there_;
    const std::uint64_t reduced = unit.shard_gradient_bytes - early_gradient_bytes(unit);
    std::uint64_t own = unit.arriving_bytes;
    if (reduce_ && unit.finalizing_bytes > 0)
      own = std::max(own, checked_add(reduced, unit.finalizing_bytes));
    most_arriving_ = std::max(most_arriving_, checked_add(before, own));
    most_with_casts_ = std::max(most_with_casts_, checked_add(checked_add(before, own), casts_));
    if (with_casts_.erase(&unit) > 0) casts_ -= unit.cast_bytes;
    if (options_.stored_on_host || !reduce_) return;
    gradients_there_ = checked_add(gradients_there_, reduced);
  }

  void hold_casts(const StepUnit& unit) {
    if (with_casts_.insert(&unit).second) casts_ = checked_add(casts_, unit.cast_bytes);
  }

  [[nodiscard]] std::uint64_t beyond_gradients(std::uint64_t bytes) const {
    return options_.stored_on_host ? bytes : bytes - std::min(bytes, gradients_there_);
  }

  /// The part of the optimizer's gradients that exists as soon as the first gradient of the unit comes: the
  /// flat gradients of parameters that are not sharded.
  [[nodiscard]] std::uint64_t early_gradient_bytes(const StepUnit& unit) const {
    return options_.one_shard ? unit.shard_gradient_bytes : unit.replicated_gradient_bytes;
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

  /// Returns how many complete gradients may stay unsharded with one shard.
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
  Schedule schedule_;
  bool reduce_ = true;
  Level units_;
  Level parameters_;
  Level gradients_;
  Level group_shards_;
  std::map<std::uint64_t, Level> blocks_;  // Blocks of the pool by size.
  std::uint64_t gradients_there_ = 0;      // Gradients that the optimizer reads.
  std::uint64_t most_arriving_ = 0;        // The most arriving gradients, with gradients_there_.
  std::uint64_t casts_ = 0;                // Autocast's copies of parameters.
  std::uint64_t most_with_casts_ = 0;      // The most copies, with gradients_there_ and arriving gradients.
  struct InOrder {
    std::size_t begin = 0;      ///< Index in order_.
    std::size_t inner_end = 0;  ///< Index in order_ past all units inside it.
    std::size_t end = 0;        ///< Index in ends_.
  };
  std::vector<const StepUnit*> order_;  // The units in the order in which they begin to run.
  std::vector<const StepUnit*> ends_;   // The units in the order in which they end.
  std::map<const StepUnit*, InOrder> place_of_;
  const StepUnit* candidate_ = nullptr;  // The prefetch candidate.
  std::set<const StepUnit*> unsharded_;
  std::set<const StepUnit*> with_gradients_;
  std::set<const StepUnit*> with_group_shard_;
  std::set<const StepUnit*> with_casts_;
  // Units whose backward is done and whose parameters are freed once the next unit has gathered its own: one
  // unit, and the units around it that end with it.
  std::vector<const StepUnit*> last_;
  std::vector<const StepUnit*> late_;  // Units whose gradients are reduced at the end of backward.
  std::deque<std::uint64_t> reducing_;
};

}  // namespace

StepMemory memory_of_step(const StepUnit& root, const StepOptions& options) {
  StepMemory most;
  std::uint64_t most_with_casts = 0;
  const auto raise = [](auto& value, auto other) { value = std::max(value, other); };
  for (const OwnWork& of_root : kWays) {
    for (const OwnWork& of_others : kWays) {
      for (const bool first_has_none : {false, true}) {
        const StepMemory memory = Step(options, {of_root, of_others, first_has_none}).run(root);
        raise(most.parameter_bytes, memory.parameter_bytes);
        raise(most.gradient_bytes, memory.gradient_bytes);
        raise(most.group_shard_bytes, memory.group_shard_bytes);
        raise(most.pool_bytes, memory.pool_bytes);
        raise(most.units, memory.units);
        raise(most.arriving_bytes, memory.arriving_bytes);
        raise(most_with_casts, checked_add(memory.arriving_bytes, memory.cast_bytes));
      }
    }
  }
  most.cast_bytes = most_with_casts - most.arriving_bytes;
  return most;
}

}  // namespace accel
