#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/device/kept_tensors.hpp"
#include "train/dist/mesh_groups.hpp"
#include "train/fsdp/flat_buffer.hpp"
#include "train/fsdp/reduce_queue.hpp"
#include "train/fsdp/unit_plan.hpp"
#include "train/graph/run_unit.hpp"

namespace accel::train {

class Unit;

/// What the units of one model share during a step.
struct StepState {
  explicit StepState(const MeshGroups& groups) : reduces(groups) {}

  /// In the order of their first calls in the first forward; every rank runs the same model, so it is the
  /// same on all. Forward gathers the next one ahead, backward the one before.
  std::vector<Unit*> order;
  bool recording = true;       ///< The first forward is still under way.
  Unit* wanted = nullptr;      ///< To be gathered ahead as soon as fewer are unsharded.
  int unsharded = 0;           ///< Units whose parameters are gathered, or being gathered.
  int gathered_ahead = 0;      ///< Gathers so far that began before the unit was called.
  int most_unsharded = 0;      ///< The most there have been at once.
  std::exception_ptr failure;  ///< The first Error of a call, for who called the model.
  int recomputing = 0;         ///< Units that run again in backward at this moment, one inside another.
  bool reduce = true;  ///< Whether this backward ends with the gradients reduced (false while accumulating).
  bool expects_backward = false;  ///< The forward under way, or the last one, has grad.
  ReduceQueue reduces;
};

/// A wrapped module at run time: it gathers its parameters before the module runs and frees them after,
/// forward and backward, and reduces its gradients as soon as the last of them is there.
///
/// In backward a hook on each output unshards the unit before its gradients are computed. It is resharded
/// when all its parameters have their gradients and the gradients of all its inputs are computed, for only
/// then has every backward node that reads its parameters run. What has not happened by the end of backward,
/// finish_backward() does.
class Unit final : public UnitHooks {
 public:
  struct Options {
    bool reshard_after_forward = true;
    bool forward_prefetch = false;                ///< Start to gather the next unit while this one runs.
    bool backward_prefetch = false;               ///< The one before, in backward.
    std::optional<at::ScalarType> compute_dtype;  ///< Of floating inputs and outputs; none: as they are.
    bool recompute = false;                       ///< Activation checkpointing, if the plan says so, too.
    std::shared_ptr<StorageDevice> kept;          ///< Of what is kept for that; null: where it is.
    /// Reduce gradients at the end of backward only: some may come long after all others seem to be there.
    bool reduce_late = false;
  };

  Unit(UnitPlan plan, std::vector<std::unique_ptr<FlatBuffer>> buffers, const Options& options,
       const MeshGroups& groups, StepState& step);
  ~Unit() override;

  [[nodiscard]] const UnitPlan& plan() const { return plan_; }
  [[nodiscard]] std::span<const std::unique_ptr<FlatBuffer>> buffers() const { return buffers_; }
  [[nodiscard]] std::int64_t calls() const { return calls_; }

  [[nodiscard]] c10::IValue cast_argument(const c10::IValue& value) const override;
  [[nodiscard]] c10::IValue cast_result(const c10::IValue& value) const override;
  void before_call(std::span<const c10::IValue> arguments) override;
  void after_call(std::span<const c10::IValue> arguments, const c10::IValue& result) override;

  /// The outermost call only: a method that the module calls on itself runs again with it.
  [[nodiscard]] bool recomputes() const override { return options_.recompute && depth_ == 1; }
  /// Inside a unit that runs again backward follows at once.
  [[nodiscard]] KeptOfUnit* kept() override {
    return options_.kept != nullptr && step_.recomputing == 0 ? &kept_ : nullptr;
  }
  void before_recompute() override;
  void after_recompute() override;
  void failed(const std::exception_ptr& error) override {
    if (!step_.failure) step_.failure = error;
  }
  [[nodiscard]] std::string name() const override { return plan_.is_root() ? "(root)" : plan_.module; }

  /// Forgets what an earlier forward left to be waited for.
  void begin_micro_step();
  /// After backward: reduces what is not reduced yet, and reshards. Collective, in the same order of units
  /// everywhere.
  void finish_backward();
  void reshard();

 private:
  enum class Direction { kForward, kBackward };

  class GradientHook;
  using TensorVersions = std::vector<std::pair<at::Tensor, std::uint32_t>>;

  void on_gradient(FlatBuffer& buffer, std::size_t index, at::Tensor& parameter);
  void on_input_gradient();
  void unshard_before_backward(const at::Tensor& output);
  void reduce();
  void reshard_when_done();
  void reshard_after_forward();
  /// Gathers the parameters, starts to gather those of the unit that runs next in that direction, and to
  /// fetch what that has kept, and waits for its own.
  void unshard(Direction direction);
  void start_unshard();
  void prefetch(Direction direction);
  void gather_wanted();

  UnitPlan plan_;
  std::vector<std::unique_ptr<FlatBuffer>> buffers_;
  Options options_;
  const MeshGroups& groups_;
  StepState& step_;
  std::int64_t trainable_parameters_ = 0;
  std::int64_t calls_ = 0;
  bool unsharded_ = false;
  std::optional<std::size_t> place_;  ///< In the order of the first forward.
  KeptOfUnit kept_;

  int depth_ = 0;  ///< Calls of this unit on the stack.
  std::vector<TensorVersions>
      inputs_;             ///< Of each of those calls: which tensors came in, and their versions.
  bool in_graph_ = false;  ///< A backward will come through this unit.
  std::int64_t missing_gradients_ = 0;  ///< Trainable parameters whose gradient is not there yet.
  std::int64_t missing_inputs_ = 0;     ///< Inputs whose gradient is not computed yet.
};

}  // namespace accel::train
