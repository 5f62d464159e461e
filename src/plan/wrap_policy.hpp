#pragma once

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "structure/structure.hpp"

namespace accel {

/// The paths of the modules that the wrap policy picks, the root not among them, in pre-order.
///
/// TRANSFORMER_BASED_WRAP: the modules of the listed classes. SIZE_BASED_WRAP, of modules that are no mere
/// containers: in version 2 those with more than min_num_params elements, those of wrapped modules below
/// included; in version 1 those with at least min_num_params elements that no module below has been wrapped
/// with, bottom-up, where the search does not go below a module of fewer elements, or a MultiheadAttention. A
/// shared parameter counts once in each module that has it. min_num_params 0 wraps nothing. NO_WRAP: none.
/// Ignored modules are never picked; version 1 does not count their parameters.
///
/// Sources: accelerate/utils/fsdp_utils.py, fsdp2_prepare_auto_wrap_policy; torch/distributed/fsdp/wrap.py,
/// size_based_auto_wrap_policy and _recursive_wrap.
///
/// Throws Error (kUsage) if a listed class occurs nowhere, naming the classes there are, or if none is
/// listed.
std::vector<std::string> wrapped_modules(const ModelStructure& model, const core::FsdpConfig& config);

}  // namespace accel
