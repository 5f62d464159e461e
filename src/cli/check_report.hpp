#pragma once

#include <string>
#include <vector>

#include "cli/output/results.hpp"
#include "core/config/resolve/resolved_values.hpp"

namespace accel::cli {

/// What `accel check` found.
struct CheckReport {
  std::vector<config::ResolvedValue> values;
  std::vector<std::string> warnings;        ///< A launch prints these, too.
  std::vector<std::string> without_effect;  ///< Settings that are accepted and change nothing.
};

void print_check_text(const CheckReport& report, Results& out);
void print_check_json(const CheckReport& report, Results& out);

}  // namespace accel::cli
