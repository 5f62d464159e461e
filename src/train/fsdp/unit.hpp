#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/unit_plan.hpp"
#include "ranks/collective_order.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/device/saved_activations.hpp"
#include "train/fsdp/flat_buffer.hpp"
#include "train/fsdp/reduce_queue.hpp"
#include "train/graph/autocast.hpp"
#include "train/graph/module_state.hpp"
#include "train/graph/run_unit.hpp"

namespace accel::train {

class Unit;

/// What the units of one model share during a step.
struct StepState {
  explicit StepState(const MeshGroups& groups) : reduces(groups) {}

  /// In the order in which their first calls in the first forward begin, and in which they end; every rank
  /// runs the same model, so they are the same on all. Forward gathers the next one in the first order ahead,
  /// backward the one before in the second: a unit around others ends behind them, and its backward is before
  /// theirs.
  std::vector<Unit*> order;
  std::vector<Unit*> ends;
  bool recording = true;           ///< The first forward is still under way.
  Unit* wanted = nullptr;          ///< To be gathered ahead as soon as fewer are unsharded.
  int unsharded = 0;               ///< Units whose parameters are gathered, or being gathered.
  int gathered_ahead = 0;          ///< Gathers so far that began before the unit was called.
  int most_unsharded = 0;          ///< The most there have been at once.
  std::exception_ptr failure;      ///< The first Error of a call, for who called the model.
  std::vector<Unit*> recomputing;  ///< Units that run again in backward at this moment, one inside another.
  bool reduce = true;  ///< Whether this backward ends with the gradients reduced (false while accumulating).
  bool expects_backward = false;  ///< The forward under way, or the last one, has grad.
  ReduceQueue reduces;
  CollectiveOrder collectives;
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
    bool forward_prefetch = false;                 ///< Start to gather the next unit while this one runs.
    bool backward_prefetch = false;                ///< The one before, in backward.
    std::optional<at::ScalarType> argument_dtype;  ///< Of floating arguments; none: as they are.
    std::optional<at::ScalarType> result_dtype;    ///< Of floating results.
    bool recompute = false;                        ///< Activation checkpointing, if the plan says so, too.
    std::shared_ptr<StorageDevice> kept;           ///< Of what is kept for that; null: where it is.
    /// Reduce gradients at the end of backward only: some may come long after all others seem to be there.
    bool reduce_late = false;
    c10::Device device = c10::kCPU;  ///< That computes.
    bool without_autocast = false;   ///< Computes as if there were none.
  };

  /// `module` is the one that `plan` names.
  Unit(UnitPlan plan, const c10::IValue& module, std::vector<std::unique_ptr<FlatBuffer>> buffers,
       const Options& options, const MeshGroups& groups, StepState& step);
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
  [[nodiscard]] UnitActivations* kept() override {
    return options_.kept != nullptr && step_.recomputing.empty() ? &kept_ : nullptr;
  }
  [[nodiscard]] std::shared_ptr<const ModuleState> state() const override { return state_; }
  [[nodiscard]] bool owns(const at::Tensor& tensor) const override;
  void before_recompute() override;
  void after_recompute() override;
  void failed(const std::exception_ptr& error) override {
    if (!step_.failure) step_.failure = error;
  }
  [[nodiscard]] c10::Device device() const override { return options_.device; }
  [[nodiscard]] std::string name() const override { return text_of_module(plan_.module); }

  /// Forgets what an earlier forward left to be waited for.
  void begin_micro_step();
  /// After backward: reduces what is not reduced yet, and reshards. Collective, in the same order of units
  /// everywhere.
  void finish_backward();
  void reshard();

 private:
  enum class Direction { kForward, kBackward };

  class GradientHook;
  using TensorVersions = ModuleState::Marks;

  void on_gradient(FlatBuffer& buffer, std::size_t index, at::Tensor& parameter);
  void on_input_gradient();
  void unshard_before_backward(const at::Tensor& output);
  /// What a call has put into lists and dicts among its arguments, and into attributes.
  void unshard_before_backward_of_others(std::span<const c10::IValue> arguments,
                                         const TensorVersions& inputs);
  /// A hook on a tensor of this micro-step. A leaf, such as a parameter of the root that is an argument,
  /// outlives it: there forget_leaf_hooks() removes it.
  void hook(const at::Tensor& tensor, std::function<void(const at::TensorBase&)> body);
  void forget_leaf_hooks();
  void reduce();
  void reshard_when_done();
  void reshard_after_forward();
  /// Gathers the parameters, starts to gather those of the unit that runs next in that direction, and to
  /// fetch what that has kept, and waits for its own.
  void unshard(Direction direction);
  void start_unshard();
  void prefetch(Direction direction);
  [[nodiscard]] Unit* next_in_forward() const;
  [[nodiscard]] Unit* next_in_backward() const;
  /// Whether backward is still to come through this unit, or to come back to it.
  [[nodiscard]] bool awaits_backward() const;
  [[nodiscard]] bool is_backward_done() const { return missing_gradients_ <= 0 && missing_inputs_ <= 0; }
  void gather_wanted();

  UnitPlan plan_;
  std::shared_ptr<const ModuleState> state_;
  std::vector<std::unique_ptr<FlatBuffer>> buffers_;
  Options options_;
  const MeshGroups& groups_;
  StepState& step_;
  std::int64_t trainable_parameters_ = 0;
  std::int64_t calls_ = 0;
  bool unsharded_ = false;
  std::optional<std::size_t> place_;      ///< In StepState::order.
  std::optional<std::size_t> end_place_;  ///< In StepState::ends.
  std::size_t inner_end_ = 0;  ///< Behind the units that are called inside it, which follow it in the order.
  UnitActivations kept_;
  std::optional<WithoutAutocast> without_autocast_;
  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  std::vector<std::pair<WeakTensor, unsigned>> leaf_hooks_;  ///< Of this micro-step, by their places.

  int depth_ = 0;  ///< Calls of this unit on the stack.
  std::vector<TensorVersions>
      inputs_;                ///< Of each of those calls: which tensors came in, and their versions.
  ModuleState::Marks marks_;  ///< Of the outermost call: what was in attributes.
  bool in_graph_ = false;     ///< A backward will come through this unit.
  std::int64_t missing_gradients_ = 0;  ///< Trainable parameters whose gradient is not there yet.
  std::int64_t missing_inputs_ = 0;     ///< Inputs whose gradient is not computed yet.
  std::int64_t outputs_ahead_ = 0;      ///< Outputs whose gradient has not come yet.
  bool in_backward_ = false;            ///< That of one of them has.
};

}  // namespace accel::train
