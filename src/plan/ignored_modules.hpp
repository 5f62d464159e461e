#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "structure/structure.hpp"

namespace accel {

/// The structure with the modules marked as ignored whose whole name the regular expression `pattern` matches
/// (base/name_pattern.hpp), all that is inside them, and their parameters. An empty pattern marks nothing.
///
/// What is ignored is not sharded: every rank has it whole, and trains it with the mean gradient of all
/// ranks. fully_shard leaves the gradients of ignored parameters as each rank computed them, so that the
/// ranks' copies part without a word.
///
/// Throws Error (kUsage) if no module has such a name, naming some that are near; it begins with `origin`,
/// who sets the pattern.
///
/// Source: accelerate/utils/fsdp_utils.py, get_parameters_from_modules.
ModelStructure with_ignored(ModelStructure model, const std::string& pattern,
                            const std::string& origin = "'fsdp_config.ignored_modules'");

/// The ignored modules with floating parameters of their own that compute in another dtype than `dtype`, the
/// units' in mixed precision: in that which they have, and in float32 where they are trained.
std::vector<std::string> ignored_beside(const ModelStructure& model, std::string_view dtype);

}  // namespace accel
