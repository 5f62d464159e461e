#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "structure/structure.hpp"

namespace accel {

/// Marks as ignored the modules whose full name the regular expression `pattern` matches
/// (base/name_pattern.hpp) and all modules inside them, and as replicated their parameters. An empty pattern
/// marks nothing.
///
/// The parameters of ignored modules are not sharded: every rank has all of them and trains them with the
/// mean gradient of all ranks. fully_shard leaves the gradients of ignored parameters as each rank computed
/// them, so that the copies on the ranks silently diverge.
///
/// Throws Error (kUsage) with names that are near if no module has such a name. The message begins with
/// `origin`, the name of the setting.
///
/// Source: accelerate/utils/fsdp_utils.py, get_parameters_from_modules.
ModelStructure with_ignored(ModelStructure model, const std::string& pattern,
                            const std::string& origin = "'fsdp_config.ignored_modules'");

/// The ignored modules whose own floating parameters compute in another dtype than `dtype`, the compute dtype
/// of units in mixed precision. They compute in float32 if they are trained, and in their own dtype
/// otherwise.
std::vector<std::string> ignored_beside(const ModelStructure& model, std::string_view dtype);

}  // namespace accel
