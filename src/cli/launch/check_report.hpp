#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/output/results.hpp"
#include "core/config/resolve/resolved_values.hpp"
#include "preflight/training_data.hpp"

namespace accel::cli {

/// What `accel check` found of a configuration without errors.
struct CheckReport {
  std::string subject;  ///< What was checked: the path of the file, or "the configuration".
  std::vector<config::ResolvedValue> values;
  std::vector<std::string> warnings;        ///< A launch prints these, too.
  std::vector<std::string> without_effect;  ///< Settings that are accepted and change nothing.
  std::optional<TrainingData> data;         ///< Set if the data of a training were opened.
};

/// Which values the text shows.
enum class ShownValues {
  kSet,  ///< Those that the file, a flag or the environment has set.
  kAll,  ///< Defaults, too.
};

/// Prints the verdict, the values, and what there is to say of them.
void print_check_text(const CheckReport& report, ShownValues shown, Results& out);
/// Prints all values.
void print_check_json(const CheckReport& report, Results& out);

}  // namespace accel::cli
