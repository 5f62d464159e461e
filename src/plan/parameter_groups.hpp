#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/layout/optimizer_plan.hpp"
#include "structure/structure.hpp"

namespace accel {

/// What a run does with some parameters of a model, for reports.
struct ParameterGroupInfo {
  std::string pattern;    ///< OptimizerGroup::pattern
  std::string optimizer;  ///< Its type; "none" for parameters that keep their values.
  double lr = 0;
  double weight_decay = 0;
  std::size_t tensors = 0;
  std::int64_t elements = 0;
};

/// The parameters of a model by the groups of a plan, in the order of their patterns, without empty groups.
/// Groups that only store differently are one. Parameters that keep their values have no optimizer.
std::vector<ParameterGroupInfo> parameter_groups(const ModelStructure& model, const OptimizerPlan& plan);

/// Names matrices of embeddings and heads that Muon trains, as a warning; empty if there are none.
std::string muon_warning(const ModelStructure& model, const OptimizerPlan& plan);

}  // namespace accel
