#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/exit_code.hpp"
#include "ckpt/convert/merge.hpp"
#include "ckpt/plan/weight_files.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/ckpt/output_report.hpp"
#include "cli/line/command_line.hpp"

namespace accel::cli {

/// The options of `merge-weights`.
struct MergeOptions {
  std::string checkpoint;
  std::string output;
  std::string adapter;
  ckpt::MergeOptions merge;
  std::vector<std::string> renames;
  std::optional<std::int64_t> step;
  bool best = false;
  std::string assets;
  bool no_assets = false;
  bool module_names = false;
  bool verify = false;
  bool remove_source = false;
  WriteOptions write;
};

/// Whether OUT is the name of a file, which then ends in `extension`.
[[nodiscard]] bool names_a_file(const MergeOptions& options, std::string_view extension);

/// The target of a merge: the file OUT, or the directory OUT, which gets the files of the plan and `assets`.
/// Throws Error (kUsage) if OUT is a file and the plan or the options need a directory.
[[nodiscard]] ckpt::OutputTarget target_of(const MergeOptions& options, const ckpt::OutputPlan& plan,
                                           const ckpt::WeightFiles& names,
                                           std::vector<std::filesystem::path> assets);

/// The names of files, without their directories.
[[nodiscard]] std::vector<std::string> names_of(const std::vector<std::filesystem::path>& assets);

/// Prints which files are copied beside the weights, or would be.
void say_what_is_copied(const std::vector<std::filesystem::path>& assets, bool dry_run,
                        const Globals& globals);

/// Runs `merge-weights --adapter`: merges the adapter into its base, the checkpoint of the options.
ExitCode merge_adapter(const MergeOptions& options, const Globals& globals);

}  // namespace accel::cli
