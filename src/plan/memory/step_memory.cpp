#include "plan/memory/step_memory.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <utility>

#include "base/checked.hpp"
#include "plan/memory/prefetch_schedule.hpp"

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
  /// Where it begins, among the units inside it. Its own gradients are complete when backward comes there.
  enum class Begin { kInFront, kBehindFirst, kBehindAll };

  Begin begin = Begin::kInFront;
  bool between = false;  ///< It runs between any two: in backward one is freed before the other is gathered.
};

constexpr OwnWork kWays[] = {{OwnWork::Begin::kInFront, false},
                             {OwnWork::Begin::kInFront, true},
                             {OwnWork::Begin::kBehindFirst, true},
                             {OwnWork::Begin::kBehindAll, false},
                             {OwnWork::Begin::kBehindAll, true}};

/// The own work of the root and of all other units around others.
struct Ways {
  OwnWork root;
  OwnWork others;
  bool first_has_no_input_gradient = false;  ///< The first unit is freed without waiting for one.
};

class Step {
 public:
  Step(const StepUnit& root, const StepOptions& options, const Ways& ways)
      : options_(options), ways_(ways), schedule_(options.prefetch_depth), root_(*this, root, 0) {
    schedule_.finish_recording();
  }

  StepMemory run() {
    if (options_.accumulates) run_micro_batch(/*reduce=*/false);
    run_micro_batch(/*reduce=*/true);
    StepMemory memory{parameters_.most, gradients_.most, group_shards_.most, 0,
                      static_cast<std::size_t>(schedule_.most_unsharded())};
    memory.gradient_temp_bytes = beyond_gradients(most_gradient_temp_);
    memory.cast_bytes = beyond_gradients(most_with_casts_) - memory.gradient_temp_bytes;
    for (const auto& [bytes, blocks] : blocks_)
      memory.pool_bytes = checked_add(memory.pool_bytes, checked_mul(bytes, blocks.most));
    return memory;
  }

 private:
  /// A unit during the step. The constructor records the forward in the schedule.
  class Node final : public PrefetchUnit {
   public:
    Node(Step& step, const StepUnit& unit, int depth)
        : sizes(unit),
          is_root(depth == 0),
          recomputes(step.options_.recompute && unit.recomputes && !is_root),
          reduces_late(step.options_.recompute && depth > 1),
          is_first(step.units_++ == 1),
          step_(step) {
      step.schedule_.begin_call(*this);
      for (const StepUnit& each : unit.inner) inner.emplace_back(step, each, depth + 1);
      step.schedule_.end_call(*this);
      if (step.options_.keeps_blocks) step.add_early_gradients(*this);
    }

    void start_unshard() override { step_.unshard(*this); }
    void fetch_activations() override {}
    [[nodiscard]] bool awaits_backward() const override { return awaits; }

    const StepUnit& sizes;
    bool is_root;
    bool recomputes;    ///< It is recomputed in backward.
    bool reduces_late;  ///< Its gradients are reduced at the end of backward.
    bool is_first;      ///< It is the first unit that runs inside the root.
    std::list<Node> inner;
    bool has_gradients = false;
    bool has_group_shard = false;
    bool has_casts = false;
    bool awaits = false;  ///< It ran with grad, and its backward has not begun.

   private:
    Step& step_;
  };

  void run_micro_batch(bool reduce) {
    reduce_ = reduce;
    forward(root_, /*with_grad=*/true, nullptr);
    backward(root_);
    schedule_.drop_candidates();
    free_last();
    for (Node* node : late_) this->reduce(*node);
    late_.clear();
    while (!reducing_.empty()) finish_oldest();
  }

  [[nodiscard]] bool reshards(const Node& node) const {
    return options_.reshard_after_forward && !node.sizes.stays_gathered && !node.is_root;
  }

  /// A unit that is recomputed in backward runs without grad in forward. `recomputing` is the innermost unit
  /// that is being recomputed, or null.
  void forward(Node& node, bool with_grad, const Node* recomputing) {
    unshard(node);
    if (options_.forward_prefetch) schedule_.prefetch_forward(node, recomputing);
    drop_group_shard(node);
    const bool has_graph = with_grad && !node.recomputes;
    if (has_graph) hold_casts(node);
    if (with_grad) node.awaits = true;
    for (Node& inner : node.inner) forward(inner, has_graph, recomputing);
    if (reshards(node) && options_.reshard_size > 0) keep_group_shard(node);
    if (!with_grad || reshards(node)) reshard(node);
  }

  void backward(Node& node) {
    node.awaits = false;
    unshard(node);
    if (options_.backward_prefetch) schedule_.prefetch_backward(node, node.recomputes);
    drop_group_shard(node);
    free_last();
    if (node.recomputes) {
      hold_casts(node);
      for (Node& inner : node.inner) forward(inner, /*with_grad=*/true, &node);
    }
    const OwnWork& own = node.is_root ? ways_.root : ways_.others;
    const auto complete_if = [&](bool is_complete) {
      if (!is_complete) return;
      complete_gradients(node);
      if (node.is_first && ways_.first_has_no_input_gradient) reshard(node);
    };
    begin_gradients(node);
    complete_if(node.inner.empty() || own.begin == OwnWork::Begin::kBehindAll);
    for (auto inner = node.inner.rbegin(); inner != node.inner.rend(); ++inner) {
      if (own.between && inner != node.inner.rbegin()) free_last();
      complete_if(own.begin == OwnWork::Begin::kBehindFirst && std::next(inner) == node.inner.rend());
      backward(*inner);
    }
    if (own.begin == OwnWork::Begin::kInFront && !node.inner.empty()) {
      free_last();
      complete_gradients(node);
    }
    // A recomputed unit has a backward of its own, which ends before the outer backward goes on.
    if (node.recomputes) free_last();
    last_.push_back(&node);
  }

  void complete_gradients(Node& node) {
    arrive(node);
    if (reduce_ && node.reduces_late) {
      late_.push_back(&node);
    } else if (reduce_) {
      reduce(node);
    }
  }

  void take_block(Level& level, std::uint64_t bytes) {
    level.add(bytes);
    blocks_[bytes].add(1);
  }
  void free_block(Level& level, std::uint64_t bytes) {
    level.now -= bytes;
    --blocks_[bytes].now;
  }

  void unshard(const Node& node) {
    if (!schedule_.on_unshard(node)) return;
    for (const StepBuffer& buffer : node.sizes.buffers) take_block(parameters_, buffer.bytes);
  }

  void reshard(const Node& node) {
    if (!schedule_.on_reshard(node)) return;
    for (const StepBuffer& buffer : node.sizes.buffers) free_block(parameters_, buffer.bytes);
    schedule_.gather_candidates();
  }

  [[nodiscard]] std::uint64_t group_shard_bytes(const StepBuffer& buffer) const {
    return buffer.bytes / static_cast<std::uint64_t>(options_.reshard_size);
  }

  void keep_group_shard(Node& node) {
    if (std::exchange(node.has_group_shard, true)) return;
    for (const StepBuffer& buffer : node.sizes.buffers) take_block(group_shards_, group_shard_bytes(buffer));
  }

  // Called after the unit's own gather.
  void drop_group_shard(Node& node) {
    if (!std::exchange(node.has_group_shard, false)) return;
    for (const StepBuffer& buffer : node.sizes.buffers) free_block(group_shards_, group_shard_bytes(buffer));
  }

  /// An outer unit is freed before the inner unit whose input is its own, as its call begins first.
  void free_last() {
    for (; !last_.empty(); last_.pop_back()) reshard(*last_.back());
  }

  void begin_gradients(Node& node) {
    if (std::exchange(node.has_gradients, true)) return;
    if (!options_.keeps_blocks) add_early_gradients(node);
    for (const StepBuffer& buffer : node.sizes.buffers) {
      if (buffer.gradient_bytes > 0) take_block(gradients_, buffer.gradient_bytes);
    }
  }

  /// The last of the unit's gradients comes.
  void arrive(Node& node) {
    const std::uint64_t before = options_.stored_on_host ? 0 : gradients_there_;
    const std::uint64_t reduced = node.sizes.shard_gradient_bytes - early_gradient_bytes(node);
    std::uint64_t own = node.sizes.gradient_temp_bytes;
    if (reduce_ && node.sizes.finalizing_bytes > 0)
      own = std::max(own, checked_add(reduced, node.sizes.finalizing_bytes));
    most_gradient_temp_ = std::max(most_gradient_temp_, checked_add(before, own));
    most_with_casts_ = std::max(most_with_casts_, checked_add(checked_add(before, own), casts_));
    if (std::exchange(node.has_casts, false)) casts_ -= node.sizes.cast_bytes;
    if (options_.stored_on_host || !reduce_) return;
    gradients_there_ = checked_add(gradients_there_, reduced);
  }

  void hold_casts(Node& node) {
    if (!std::exchange(node.has_casts, true)) casts_ = checked_add(casts_, node.sizes.cast_bytes);
  }

  [[nodiscard]] std::uint64_t beyond_gradients(std::uint64_t bytes) const {
    return options_.stored_on_host ? bytes : bytes - std::min(bytes, gradients_there_);
  }

  /// The part of the optimizer's gradients that exists as soon as the first gradient of the unit comes: the
  /// flat gradients of parameters that are not sharded.
  [[nodiscard]] std::uint64_t early_gradient_bytes(const Node& node) const {
    return options_.one_shard ? node.sizes.shard_gradient_bytes : node.sizes.replicated_gradient_bytes;
  }
  void add_early_gradients(const Node& node) {
    gradients_there_ = checked_add(gradients_there_, early_gradient_bytes(node));
  }

  void reduce(Node& node) {
    node.has_gradients = false;
    for (const StepBuffer& buffer : node.sizes.buffers) {
      if (buffer.gradient_bytes == 0) continue;
      while (!options_.one_shard && reducing_.size() >= kMaxReducing) finish_oldest();
      reducing_.push_back(buffer.gradient_bytes);
      while (options_.one_shard && reducing_.size() > most_waiting()) finish_oldest();
    }
  }

  /// Returns how many complete gradients may stay unsharded with one shard.
  [[nodiscard]] std::size_t most_waiting() const {
    if (!options_.stored_on_host) return options_.averages ? std::numeric_limits<std::size_t>::max() : 0;
    return kMaxStoring * (options_.averages ? 2 : 1);
  }

  void finish_oldest() {
    free_block(gradients_, reducing_.front());
    reducing_.pop_front();
  }

  StepOptions options_;
  Ways ways_;
  bool reduce_ = true;
  PrefetchSchedule schedule_;
  Level parameters_;
  Level gradients_;
  Level group_shards_;
  std::map<std::uint64_t, Level> blocks_;  // Blocks of the pool by size.
  std::uint64_t gradients_there_ = 0;      // Gradients that the optimizer reads.
  std::uint64_t most_gradient_temp_ = 0;   // The most gradient_temp_bytes, with gradients_there_.
  std::uint64_t casts_ = 0;                // Autocast's copies of parameters.
  std::uint64_t most_with_casts_ = 0;      // The most copies, with gradients_there_ and gradient_temp_bytes.
  std::size_t units_ = 0;
  // Units whose backward is done and whose parameters are freed once the next unit has gathered its own: one
  // unit, and the units around it that end with it.
  std::vector<Node*> last_;
  std::vector<Node*> late_;  // Units whose gradients are reduced at the end of backward.
  std::deque<std::uint64_t> reducing_;
  Node root_;  // The last member, because its constructor uses the others.
};

}  // namespace

StepMemory memory_of_step(const StepUnit& root, const StepOptions& options) {
  StepMemory most;
  std::uint64_t most_with_casts = 0;
  const auto raise = [](auto& value, auto other) { value = std::max(value, other); };
  for (const OwnWork& root_work : kWays) {
    for (const OwnWork& other_work : kWays) {
      for (const bool first_has_none : {false, true}) {
        const StepMemory memory = Step(root, options, {root_work, other_work, first_has_none}).run();
        raise(most.parameter_bytes, memory.parameter_bytes);
        raise(most.gradient_bytes, memory.gradient_bytes);
        raise(most.group_shard_bytes, memory.group_shard_bytes);
        raise(most.pool_bytes, memory.pool_bytes);
        raise(most.units, memory.units);
        raise(most.gradient_temp_bytes, memory.gradient_temp_bytes);
        raise(most_with_casts, checked_add(memory.gradient_temp_bytes, memory.cast_bytes));
      }
    }
  }
  most.cast_bytes = most_with_casts - most.gradient_temp_bytes;
  return most;
}

}  // namespace accel
