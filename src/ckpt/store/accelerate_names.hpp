#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accel::ckpt {

/// The names that Accelerate gives to the parts of a checkpoint begin with these.
inline constexpr std::string_view kModelStem = "pytorch_model_fsdp";
inline constexpr std::string_view kOptimizerStem = "optimizer";

/// The name without extension of the file that holds a whole model or optimizer: `stem` for index 0, and
/// otherwise `{stem}_{index}`.
[[nodiscard]] std::string file_stem(std::string_view stem, int index);

/// The name of the directory of a sharded checkpoint: `{stem}_{index}`, also for index 0.
[[nodiscard]] std::string sharded_directory(std::string_view stem, int index);

/// The name of a file that one rank wrote for itself: `pytorch_model_fsdp[_{i}]_rank{R}.bin` or
/// `optimizer[_{i}]_rank{R}.bin`.
struct RankFileName {
  std::string stem;  ///< What stands before `_rank`.
  int rank = 0;
};

/// Parses a file name; nothing if it is not of that form.
[[nodiscard]] std::optional<RankFileName> parse_rank_file_name(std::string_view name);

}  // namespace accel::ckpt
