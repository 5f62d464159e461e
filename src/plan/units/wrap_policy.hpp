#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "structure/structure.hpp"

namespace accel {

/// The paths of the modules that the wrap policy picks, the root not among them, in pre-order.
///
/// - TRANSFORMER_BASED_WRAP picks the modules of the listed classes.
/// - SIZE_BASED_WRAP picks modules that are not mere containers. Version 2 picks those with more than
///   min_num_params elements, including elements of wrapped modules inside. Version 1 works bottom-up and
///   picks those with at least min_num_params elements outside wrapped modules; it does not search inside a
///   module of fewer elements or a MultiheadAttention. A shared parameter counts once in each module that has
///   it. With min_num_params 0 nothing is wrapped.
/// - NO_WRAP picks nothing.
/// Ignored modules are never picked. Version 1 does not count their parameters.
///
/// Sources: accelerate/utils/fsdp_utils.py, fsdp2_prepare_auto_wrap_policy; torch/distributed/fsdp/wrap.py,
/// size_based_auto_wrap_policy and _recursive_wrap.
///
/// Throws Error (kUsage) if no class is listed, or if a listed class does not occur; the latter names the
/// model's classes.
std::vector<std::string> wrapped_modules(const ModelStructure& model, const config::FsdpConfig& config);

}  // namespace accel
