#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accel::ckpt {

/// Accelerate's names of a checkpoint's parts begin with these.
inline constexpr std::string_view kModelStem = "pytorch_model_fsdp";
inline constexpr std::string_view kOptimizerStem = "optimizer";

/// The name without extension of a model's or optimizer's file of its own: `stem`, and from the second model
/// on `{stem}_{index}`.
[[nodiscard]] std::string file_stem(std::string_view stem, int index);

/// The directory of a sharded checkpoint: `{stem}_{index}`, index 0 included.
[[nodiscard]] std::string sharded_directory(std::string_view stem, int index);

/// The name of a file that one rank wrote for itself: `pytorch_model_fsdp[_{i}]_rank{R}.bin` or
/// `optimizer[_{i}]_rank{R}.bin`.
struct RankFileName {
  std::string stem;  ///< What stands before `_rank`.
  int rank = 0;
};

/// Nothing if the name is not of that form.
[[nodiscard]] std::optional<RankFileName> parse_rank_file_name(std::string_view name);

}  // namespace accel::ckpt
