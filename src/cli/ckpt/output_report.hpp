#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/line/command_line.hpp"

namespace accel::cli {

/// What a command that writes a plan reports about it. The report borrows the plan, source and target.
struct OutputReport {
  const ckpt::OutputPlan& plan;
  ckpt::Checkpoint& source;
  const ckpt::OutputTarget& target;
  std::filesystem::path path;            ///< What the result is called: the target, or its main file.
  std::size_t tensors = 0;               ///< The number of tensors that are written.
  nlohmann::ordered_json details = {};   ///< Keys that only this command has, for --json.
  std::vector<std::string> names = {};   ///< The argument of ckpt::describe; empty if names stay.
  double seconds = 0;                    ///< The seconds that writing took.
  std::optional<bool> is_verified = {};  ///< Commands that cannot verify do not set it.
};

/// Writes the plan, with a progress bar that says `doing` ("merging"), and notes the time that it took.
void write_plan(OutputReport& report, const ckpt::WriteLimits& limits, const std::string& doing,
                const Globals& globals);

/// Prints the plan for --dry-run: which bytes would go where.
void print_plan(const OutputReport& report, const Globals& globals);

/// Prints what has been written.
void print_result(const OutputReport& report, const Globals& globals);

/// Adds --dtype.
void add_dtype(Command& command, std::optional<ckpt::DType>& dtype);

/// The options of all commands that write a plan.
struct WriteOptions {
  bool force = false;
  bool dry_run = false;
  ckpt::WriteLimits limits;
};

/// Adds --force, --dry-run, --max-memory and --threads.
void add_write_options(Command& command, WriteOptions& options);

/// A target that is the file `path` itself.
[[nodiscard]] ckpt::OutputTarget file_target(const std::filesystem::path& path, const WriteOptions& options);

/// Writes the plan and prints the result; with --dry-run only prints the plan.
void carry_out(OutputReport& report, const WriteOptions& options, const std::string& doing,
               const Globals& globals);

}  // namespace accel::cli
