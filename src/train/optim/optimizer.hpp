#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/layout/optimizer_plan.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"
#include "train/optim/gradient_presence.hpp"
#include "train/optim/optimizer_state.hpp"
#include "train/optim/update_rules.hpp"

namespace accel::train {

/// The optimizers of a run, on flat shards. It has state for the shards of this rank alone. What is stored
/// for a parameter is in plan/layout/optimizer_plan, and how it is changed in update_rules.hpp; everything
/// else is here.
class Optimizer {
 public:
  using State = OptimizerState;

  /// `shard` is the number of this rank's shard in each buffer that is sharded. `groups` must outlive the
  /// optimizer, and may be null if there is one shard or if no group of the plan has a CollectiveRule.
  Optimizer(OptimizerPlan plan, const std::vector<FlatBuffer*>& buffers, int shard,
            const MeshGroups* groups = nullptr);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  [[nodiscard]] const OptimizerPlan& plan() const { return plan_; }

  /// Makes one step with the gradients that the buffers hold. `scale` is the factor by which the schedule
  /// multiplies the learning rate of each group. `presence` is for the same buffers. Parameters that have no
  /// gradient according to it keep their values and their state. Collective.
  void step(double scale, const GradientPresence& presence);
  /// Makes one step with the presence of gradients on this rank, which must be the same on all ranks.
  void step(double scale);

  /// In the order of the buffers, and of a buffer's groups.
  [[nodiscard]] const std::vector<State>& states() const { return states_; }
  /// Sets the number of steps, and those of each parameter of each of states(), for a run that resumes. The
  /// caller has filled the tensors of states().
  void restore_steps(std::int64_t steps, std::vector<std::vector<std::int64_t>> parameter_steps);
  /// Sets what step() calls before it changes the shard and the tensors of a state; may be empty. It is
  /// called for all states before the first change.
  void call_before_change(std::function<void(const State&)> call) { before_change_ = std::move(call); }
  /// The number of steps of the optimizer. A parameter may have had fewer.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// The number of steps of the parameter that has had the most.
  [[nodiscard]] std::int64_t parameter_steps() const;
  /// The names of the parameters that have had no gradient in any step: all of them, or those whose first
  /// step leaves out a dampening.
  [[nodiscard]] std::vector<std::string> unused(bool dampened = false) const;

 private:
  /// Group, steps, dtype and kind of device.
  using BatchKey = std::tuple<std::size_t, std::int64_t, at::ScalarType, c10::DeviceType>;
  using Batches = std::map<BatchKey, UpdateBatch>;

  /// Adds the parts of the parameters with a gradient. Neighbours become one part.
  void add_parts(const State& state, const std::vector<bool>& has_gradient, Batches& batches) const;

  OptimizerPlan plan_;
  int shard_;
  std::vector<State> states_;
  std::vector<std::unique_ptr<CollectiveRule>> collective_rules_;
  std::int64_t steps_ = 0;
  std::function<void(const State&)> before_change_;
};

}  // namespace accel::train
