#pragma once

#include <torch/csrc/jit/api/module.h>

#include <exception>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/config/config.hpp"
#include "train/c10d/group.hpp"
#include "train/fsdp/step_state.hpp"
#include "train/graph/run/run_unit.hpp"
#include "train/graph/run/unit_body.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {

/// The bodies of the layers that run compiled code, by the paths of the layers.
using CompiledBodies = std::unordered_map<std::string, UnitBody>;

/// Loads the compiled code in `file`, which thereby runs with the rights of this process, for the layers of
/// `root`, whose methods are not rewritten yet. Collective over `world`.
///
/// If the file has no code, or its code is for another version of torch, another processor or another
/// precision than that of the run, the result is empty and a warning says so, unless `config.fullgraph` makes
/// it an Error of kind kUsage. It is an Error, too, if the code fits on some ranks only.
[[nodiscard]] CompiledBodies compiled_bodies(const ModelFile& file, const torch::jit::Module& root,
                                             const config::CompileConfig& config,
                                             const config::PrecisionConfig& precision, Group& world);

/// A layer that runs compiled code and is not a unit: another unit gathers its parameters.
class CompiledModule final : public UnitHooks {
 public:
  /// `step` must outlive this.
  CompiledModule(std::string module, UnitBody body, StepState& step)
      : module_(std::move(module)), body_(std::move(body)), step_(step) {}

  void before_call(std::span<const c10::IValue> /*arguments*/) override {}
  void after_call(std::span<const c10::IValue> /*arguments*/, const c10::IValue& /*result*/) override {}
  [[nodiscard]] const UnitBody* compiled_body() const override { return &body_; }
  void failed(const std::exception_ptr& error) override {
    if (!step_.failure) step_.failure = error;
  }
  [[nodiscard]] std::string name() const override { return module_; }

 private:
  std::string module_;
  UnitBody body_;
  StepState& step_;
};

}  // namespace accel::train
