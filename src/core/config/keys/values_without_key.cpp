#include "core/config/keys/keys.hpp"

namespace accel::config {
namespace {

template <auto Member>
constexpr config::Member fsdp = member<&Config::fsdp, Member>;
template <auto Member>
constexpr config::Member precision = member<&Config::fsdp, &FsdpConfig::precision, Member>;

// The dtypes follow from mixed_precision and fsdp_config.reduce_dtype.
constexpr auto kWithoutKey = with_types_of_members(std::to_array<Key>({
    {.path = "fsdp_config.reshard_size", .member = fsdp<&FsdpConfig::reshard_size>, .traits = kNoNumbers},
    {.path = "fsdp_config.wrap_origin",
     .member = fsdp<&FsdpConfig::wrap_origin>,
     .traits = kNoNumbers | kOneMachine},
    {.path = "fsdp_config.ignored_origin",
     .member = fsdp<&FsdpConfig::ignored_origin>,
     .traits = kNoNumbers | kOneMachine},
    {.path = "fsdp_config.param_dtype", .member = precision<&PrecisionConfig::param_dtype>},
    {.path = "fsdp_config.io_dtype", .member = precision<&PrecisionConfig::io_dtype>},
    {.path = "fsdp_config.buffer_dtype", .member = precision<&PrecisionConfig::buffer_dtype>},
    {.path = "fsdp_config.autocast_dtype", .member = precision<&PrecisionConfig::autocast_dtype>},
    {.path = "training.checkpoint.continuously",
     .member = member<&Config::training, &TrainingConfig::checkpoint, &CheckpointConfig::continuously>,
     .traits = kNoNumbers},
    {.path = "launch.directory",
     .member = member<&Config::launch, &LaunchConfig::directory>,
     .traits = kNoNumbers | kOneMachine},
    {.path = "training.only_evaluates",
     .member = member<&Config::training, &TrainingConfig::only_evaluates>,
     .traits = kNoNumbers},
    {.path = "training.checkpoint.resume_from",
     .member = member<&Config::training, &TrainingConfig::checkpoint, &CheckpointConfig::resume_from>,
     .traits = kNoNumbers},
}));

}  // namespace

std::span<const Key> resolved_values_without_key() { return kWithoutKey; }

}  // namespace accel::config
