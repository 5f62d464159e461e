#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/command_line.hpp"

namespace accel::cli {

/// What a command that writes a plan has to say about it.
struct OutputReport {
  const ckpt::OutputPlan& plan;
  ckpt::Checkpoint& source;
  const ckpt::OutputTarget& target;
  nlohmann::ordered_json details = {};  ///< Of this command alone, for --json.
  double seconds = 0;
};

/// --dry-run: which bytes would go where.
void print_plan(const OutputReport& report, const Globals& globals);
/// What has been written; `what` names it in the text ("12 tensors").
void print_result(const OutputReport& report, const std::string& what, const Globals& globals);

/// --dtype.
void add_dtype(Command& command, std::optional<ckpt::DType>& dtype);
/// --force, --dry-run, --max-memory, --threads.
void add_write_options(Command& command, bool& force, bool& dry_run, ckpt::WriteLimits& limits);

}  // namespace accel::cli
