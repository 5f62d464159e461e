#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/memory/prefetch_schedule.hpp"
#include "plan/units/unit_plan.hpp"
#include "train/c10d/mesh_groups.hpp"
#include "train/device/saved_activations.hpp"
#include "train/fsdp/backward_tracker.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"
#include "train/fsdp/call_outputs.hpp"
#include "train/fsdp/step_state.hpp"
#include "train/fsdp/tensor_hooks.hpp"
#include "train/graph/run/autocast.hpp"
#include "train/graph/run/module_state.hpp"
#include "train/graph/run/run_unit.hpp"

namespace accel::train {

/// A wrapped module at run time. It gathers its parameters before the module runs and frees them afterwards,
/// in forward and in backward, and reduces its gradients as soon as the last of them has come.
///
/// In backward a hook on each output (CallOutputs) unshards the unit before its gradients are computed. The
/// unit is resharded when its backward is done (BackwardTracker). finish_backward() does what has not
/// happened by the end of backward.
class Unit final : public UnitHooks, public PrefetchUnit {
 public:
  struct Options {
    bool reshard_after_forward = true;
    bool forward_prefetch = false;   ///< Start to gather the next units while this one runs.
    bool backward_prefetch = false;  ///< Start to gather, in backward, the units whose backward is next.
    std::optional<at::ScalarType> argument_dtype;  ///< Floating arguments are cast to it, if set.
    std::optional<at::ScalarType> result_dtype;    ///< Floating results are cast to it, if set.
    bool returns_loss = false;  ///< Results without dimensions are not cast, as by the root.
    bool recompute = false;     ///< Activation checkpointing, where the plan has it, too.
    std::shared_ptr<StorageDevice> activation_storage;  ///< Stores saved activations, unless null.
    /// Reduce gradients at the end of backward only, because some may come after all seem to be there.
    bool reduce_late = false;
    c10::Device device = c10::kCPU;  ///< The device that computes.
    bool without_autocast = false;   ///< Compute as if autocast were off.
    UnitBody compiled;               ///< The compiled code of the module; empty if it has none.
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

  /// Only the outermost call is recomputed; it includes the methods that the module calls on itself.
  [[nodiscard]] bool recomputes() const override { return options_.recompute && depth_ == 1; }
  /// Inside a recomputation backward follows at once, so that nothing is offloaded.
  [[nodiscard]] UnitActivations* saved_activations() override {
    return options_.activation_storage != nullptr && step_.recomputing.empty() ? &activations_ : nullptr;
  }
  [[nodiscard]] std::shared_ptr<const ModuleState> state() const override { return state_; }
  [[nodiscard]] bool owns(const at::Tensor& tensor) const override;
  [[nodiscard]] const UnitBody* compiled_body() const override {
    return options_.compiled ? &options_.compiled : nullptr;
  }
  void before_recompute() override;
  void after_recompute() override;
  void failed(const std::exception_ptr& error) override {
    if (!step_.failure) step_.failure = error;
  }
  [[nodiscard]] c10::Device device() const override { return options_.device; }
  [[nodiscard]] std::string name() const override { return text_of_module(plan_.module); }

  /// Forgets what an earlier forward or backward has left unfinished.
  void begin_micro_batch();
  /// Call after backward: reduces the gradients that are left, and reshards. Collective, in the same
  /// order of units on all ranks.
  void finish_backward();
  void reshard();

 private:
  enum class Direction { kForward, kBackward };

  class GradientHook;

  void start_unshard() override;
  void fetch_activations() override { activations_.fetch_next(); }
  [[nodiscard]] bool awaits_backward() const override { return backward_.awaits_backward(); }

  void on_gradient(FlatBuffer& buffer, std::size_t index, at::Tensor& parameter);
  /// Adds it to the flat gradient. A part of a gradient is summed along tp first.
  void add_gradient(FlatBuffer& buffer, std::size_t index, const at::Tensor& gradient);
  /// Whether ranks along tp have different gradients `own` of a parameter, as they do of one whose gradient
  /// is their sum; false if all have 0. Throws Error (kUsage), on all of them, if they have the same.
  /// Collective among them.
  [[nodiscard]] bool require_parts(const ParameterSpec& parameter, const at::Tensor& own) const;
  /// Hooks on the inputs of a call with grad: the unit may be resharded when their gradients are there.
  void hook_inputs(std::span<const c10::IValue> arguments);
  /// A hook on an output of a call: the unit is unsharded when its gradient comes.
  void hook_output(const at::Tensor& output);
  void reduce();
  void reshard_when_done();
  void reshard_after_forward();
  /// Gathers the parameters, starts to gather those of the next units in that direction, and waits for its
  /// own gather.
  void unshard(Direction direction);

  UnitPlan plan_;
  std::shared_ptr<const ModuleState> state_;
  std::vector<std::unique_ptr<FlatBuffer>> buffers_;
  Options options_;
  const MeshGroups& groups_;
  StepState& step_;
  UnitActivations activations_;
  std::optional<WithoutAutocast> without_autocast_;

  std::int64_t calls_ = 0;
  int depth_ = 0;                            ///< Calls of this unit on the stack.
  const std::string flight_name_ = name();   ///< The name in the flight record.
  std::vector<std::uint64_t> flight_calls_;  ///< The numbers of these calls there.
  CallOutputs outputs_;
  BackwardTracker backward_;
  TensorHooks hooks_;
  /// The parameters of which require_parts() has seen that ranks have parts of the gradient.
  std::set<std::pair<const FlatBuffer*, std::size_t>> partial_;
};

}  // namespace accel::train
