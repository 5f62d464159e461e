#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "core/config/config.hpp"
#include "plan/optimizer_plan.hpp"
#include "train/fsdp/flat_buffer.hpp"
#include "train/optim/gradient_presence.hpp"

namespace accel::train {

/// An optimizer on flat shards. It has state for the shards of this rank alone. A kind of optimizer says what
/// it stores (plan/optimizer_plan) and how it changes parameters (apply()); everything else is here.
class Optimizer {
 public:
  struct State {
    FlatBuffer* buffer = nullptr;
    std::vector<at::Tensor> tensors;  ///< Those of plan(), each [shard_numel] and zero at first.
    /// The number of steps in which each parameter of the layout had a gradient, including parameters of
    /// which this rank has no part.
    std::vector<std::int64_t> steps;
  };

  /// `shard` is the number of this rank's shard in each buffer that is sharded.
  Optimizer(const config::OptimizerConfig& config, const std::vector<FlatBuffer*>& buffers, int shard);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  [[nodiscard]] const OptimizerPlan& plan() const { return plan_; }
  /// The entries of torch's param_group for parameters with or without weight decay, beside `params`, `lr`
  /// and `initial_lr`.
  [[nodiscard]] virtual std::vector<std::pair<const char*, ckpt::pickle::Value>> param_group(
      bool decays) const = 0;

  /// Makes one step with the gradients that the buffers hold. `presence` is for the same buffers. Parameters
  /// that have no gradient according to it keep their values and their state.
  void step(double lr, const GradientPresence& presence);
  /// Makes one step with the presence of gradients on this rank, which must be the same on all ranks.
  void step(double lr);

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

 protected:
  /// Parts of this rank's shards that one call may change together: their parameters have equal weight decay,
  /// an equal number of steps and one dtype. Part i of each list belongs to part i of the others.
  struct Batch {
    bool decays = false;
    std::int64_t steps = 0;  ///< The number of steps, including this one.
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<std::vector<at::Tensor>> tensors;  ///< For each tensor of plan().
  };

  /// Changes the parameters and the tensors of a batch.
  virtual void apply(Batch& batch, double lr) const = 0;

  [[nodiscard]] const config::OptimizerConfig& config() const { return config_; }

 private:
  /// Decay, steps, dtype and kind of device.
  using BatchKey = std::tuple<bool, std::int64_t, at::ScalarType, c10::DeviceType>;
  using Batches = std::map<BatchKey, Batch>;

  /// Adds the parts of the parameters with a gradient. Neighbours become one part.
  void add_parts(const State& state, const std::vector<bool>& has_gradient, Batches& batches) const;

  config::OptimizerConfig config_;
  const OptimizerPlan& plan_;
  int shard_;
  std::vector<State> states_;
  std::int64_t steps_ = 0;
  std::function<void(const State&)> before_change_;
};

/// The optimizer of training.optimizer.type.
std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config,
                                          const std::vector<FlatBuffer*>& buffers, int shard);

}  // namespace accel::train
