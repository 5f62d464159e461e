#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/resolve/request.hpp"
#include "core/config/value.hpp"

namespace accel::core {

// The steps of load_config after merging. Each throws Error of kind kUsage that points at the value.

/// Processes, devices and addresses.
LaunchConfig resolve_launch(const Settings& settings, const ConfigRequest& request);

/// The distributed type, inferred where nobody set it.
DistributedType resolve_distributed_type(const Settings& settings, const ConfigRequest& request,
                                         const LaunchConfig& launch);

/// What of the launcher's settings is otherwise than somebody may expect: values that do nothing, and FSDP on
/// the CPU that nobody asked for.
void warn_of_launch(const Config& config, const Settings& settings, const ConfigRequest& request,
                    std::vector<std::string>& warnings);

/// fsdp_config, with version 1's strategies in version 2's terms; appends what has no effect to `warnings`.
/// How many replicas there are is left to resolve_mesh().
FsdpConfig resolve_fsdp(const Settings& settings, std::vector<std::string>& warnings);

/// Over which ranks a strategy of version 1 shards the model: all, those of one machine, none.
enum class Spread { kAll, kMachine, kNone };

struct StrategyName {
  std::string_view name;
  Spread spread;
};

/// The strategy of version 1 that the settings ask for.
StrategyName strategy_name(const Settings& settings);

/// How the ranks are laid out: fills the replicas in `config.fsdp`, from the distributed type, version 1's
/// strategy and parallelism_config, and checks reshard_after_forward against them. For MULTI_CPU and
/// MULTI_GPU it is the whole of `config.fsdp`. The other parts of `config` are there.
void resolve_mesh(Config& config, const Settings& settings, std::vector<std::string>& warnings);

/// What `mixed_precision` means, as Accelerate has it: under FSDP parameters and reduction in its dtype,
/// without FSDP and in version 1 autocast. `fsdp_config.reduce_dtype`, which Accelerate has no key for,
/// changes the reduction.
PrecisionConfig resolve_precision(const Config& config, const Settings& settings);

/// The training section; what is required and missing is an Error.
TrainingConfig resolve_training(const Settings& settings, const ConfigRequest& request);

/// training.ddp. A wrapper without a hook, and options of PowerSGD for another hook, have no effect, as in
/// Accelerate, and are appended to `warnings`. A hook with FSDP, or for one process, is an Error; only of a
/// plan for one process, whose other numbers of processes may have it, it is dropped. The other parts of
/// `config` but the training section are there.
DdpConfig resolve_ddp(const Config& config, const Settings& settings, const ConfigRequest& request,
                      std::vector<std::string>& warnings);

/// Contradictions between the parts, and files that are not there.
void validate_training(const Config& config, const Settings& settings, const ConfigRequest& request);

}  // namespace accel::core
