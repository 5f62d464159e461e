#pragma once

#include <array>

#include "core/config/keys/keys.hpp"

namespace accel::config {

inline constexpr Idle kNoFloat8 = {"'mixed_precision' is not fp8",
                                   [](const Config& config) { return !config.has_float8(); }};

/// Whether version 2 of FSDP shards a model with float8 linears.
inline bool shards_float8(const Config& config) {
  return config.has_float8() && config.distributed_type == DistributedType::kFsdp && config.fsdp.version == 2;
}

/// The keys of Accelerate's fp8_config that a training of accel reads. Those of the libraries that accel does
/// not have are in foreign_keys.cpp.
inline constexpr auto kFloat8Keys = std::to_array<Key>({
    {.path = "fp8_config.backend",
     .help =
         "With mixed_precision fp8: whose float8 linears a training has. accel computes those of torchao, "
         "AO, by itself",
     .choices = "AO|TE|MSAMP",
     .built = "AO",
     .system = "TE=Transformer Engine|MSAMP=MS-AMP",
     .idle = kNoFloat8,
     .flag = "--fp8-backend BACKEND",
     .variable = "ACCELERATE_FP8_BACKEND"},
    {.path = "fp8_config.enable_fsdp_float8_all_gather",
     .help = "With mixed_precision fp8: version 2 of FSDP gathers the weights of float8 linears in float8, "
             "cast from their float32 shards. With false they are gathered in bfloat16, and each rank casts "
             "the whole weight",
     .member = member<&Config::training, &TrainingConfig::float8, &Float8Config::gathers_float8>,
     .idle = {"no weight of a float8 linear is sharded by FSDP version 2",
              [](const Config& config) { return !shards_float8(config); }},
     .flag = "--fp8-enable-fsdp-float8-all-gather BOOL",
     .variable = "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER",
     .passed = "1"},
    {.path = "fp8_config.pad_inner_dim",
     .type = Type::kBool,
     .help = "Pads the operands of float8 products to the sizes that a GPU needs",
     .no_effect = "accel pads where a GPU needs it, which changes no number",
     .flag = "--fp8-pad-inner-dim BOOL",
     .variable = "ACCELERATE_FP8_PAD_INNER_DIM",
     .passed = "1"},
});

}  // namespace accel::config
