#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/resolve/request.hpp"
#include "core/config/value.hpp"

namespace accel::config {

// The steps of load_config after merging. Each throws Error of kind kUsage that points at the value.

// set_members() has set the members that are a setting by themselves; these steps compute the others.

/// Processes, devices and addresses.
void resolve_launch(LaunchConfig& launch, const Settings& settings, const ConfigRequest& request);

/// The distributed type, inferred where nobody set it.
DistributedType resolve_distributed_type(const Settings& settings, const ConfigRequest& request,
                                         const LaunchConfig& launch);

/// Appends to `warnings` what in the launcher's settings may surprise: values without effect, and FSDP on the
/// CPU that is not asked for.
void warn_of_launch(const Config& config, const Settings& settings, const ConfigRequest& request,
                    std::vector<std::string>& warnings);

/// What the engine always does. Setting one of them to false is a warning.
inline constexpr std::array<std::string_view, 3> kAlwaysOn = {
    "fsdp_config.use_orig_params", "fsdp_config.sync_module_states", "fsdp_config.cpu_ram_efficient_loading"};

/// fsdp_config, with the strategies of version 1 in terms of version 2. Appends what has no effect to
/// `warnings`. resolve_mesh() fills in the number of replicas.
void resolve_fsdp(FsdpConfig& fsdp, const Settings& settings, std::vector<std::string>& warnings);

/// The ranks over which a strategy of version 1 shards the model.
enum class Spread { kAll, kMachine, kNone };

struct StrategyName {
  std::string_view name;
  Spread spread;
};

/// The strategy of version 1 that the settings ask for.
StrategyName strategy_name(const Settings& settings);

/// Lays out the ranks: sets the numbers of replicas and of ranks that share a sequence in `config.fsdp` from
/// the distributed type, the strategy of version 1 and parallelism_config, and checks reshard_after_forward
/// against it. For MULTI_CPU and
/// MULTI_GPU it sets all of `config.fsdp`. Needs the distributed type, the launch section and resolve_fsdp().
void resolve_mesh(Config& config, const Settings& settings, std::vector<std::string>& warnings);

/// What `mixed_precision: fp8` needs. On GPUs without float8 products it becomes fp16, as in Accelerate, and
/// `warnings` says so. A recipe with a scale for each row is an Error if version 2 of FSDP
/// gathers in float8. Needs the distributed type, the
/// launch section and resolve_fsdp().
void resolve_float8(Config& config, const Settings& settings, const ConfigRequest& request,
                    std::vector<std::string>& warnings);

/// The meaning of `mixed_precision`, as in Accelerate: under FSDP parameters and the reduction have its
/// dtype; without FSDP, and in version 1, forward runs under autocast. `fsdp_config.reduce_dtype`, a key that
/// Accelerate does not have, sets the dtype of the reduction. fp8 is bf16 here.
PrecisionConfig resolve_precision(const Config& config, const Settings& settings);

/// The backend of dynamo_config: whether layers run compiled code. That it is asked for with float8, under
/// autocast or on GPUs is an Error. Needs the launch section and the precision.
void resolve_compile(Config& config, const Settings& settings);

/// The training section, whose members it sets, too. A required key that is missing is an Error.
void resolve_training(Config& config, const Settings& settings, const ConfigRequest& request);

/// training.ddp. As in Accelerate, a wrapper without a hook and options of PowerSGD for another hook have no
/// effect; they are appended to `warnings`. A hook with FSDP or with one process is an Error. A plan for one
/// process drops it instead, because the same plan may ask for other numbers of processes. Needs all of
/// `config` but the rest of the training section.
void resolve_ddp(Config& config, const Settings& settings, const ConfigRequest& request,
                 std::vector<std::string>& warnings);

/// Throws for what contradicts sequence parallelism, of which each rank computes a part of every sequence.
void check_sequence(const Config& config, const Settings& settings);

/// Throws for what tensor parallelism does not support yet. Needs all of `config`.
void validate_tensor_parallel(const Config& config, const Settings& settings);

/// Throws for contradictions between the parts, and for missing files.
void validate_training(const Config& config, const Settings& settings, const ConfigRequest& request);

/// Warns of a training that can run and is hardly meant so.
void warn_of_training(const TrainingConfig& training, const Settings& settings,
                      std::vector<std::string>& warnings);

}  // namespace accel::config
