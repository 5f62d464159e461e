#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "ckpt/read/inspection.hpp"
#include "cli/ckpt/model_facts.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {

/// What `accel inspect` lists beside the summary.
struct InspectOptions {
  bool tensors = false;    ///< Every tensor of the weights, object and file.
  bool optimizer = false;  ///< Those of optimizers, too.
};

/// Whether a checkpoint holds tensors that are not an optimizer's or other state of a run.
[[nodiscard]] bool has_weights(const ckpt::Inspection& result);

/// Prints what a checkpoint or model holds. `model` is only set for a model file.
void print_inspection(const ckpt::Inspection& result, const std::optional<ModelFacts>& model,
                      const InspectOptions& options, Results& out);

/// All of it, whatever the options of the text are.
[[nodiscard]] nlohmann::ordered_json json_of(const ckpt::Inspection& result,
                                             const std::optional<ModelFacts>& model);

}  // namespace accel::cli
