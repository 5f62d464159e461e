#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accel::ckpt {

/// The name of a file that one rank may have written for itself, such as `pytorch_model_fsdp_0_rank1.bin` of
/// Accelerate or `model_world_size_2_rank_1.pt` of verl.
struct RankFileName {
  std::string before;  ///< What stands before the number of the rank, such as "model_world_size_2_rank_".
  int rank = 0;
  std::string after;  ///< What stands behind it, such as ".pt".

  /// The name of the file of another rank.
  [[nodiscard]] std::string of(std::int64_t other) const { return before + std::to_string(other) + after; }
  /// Whether it is a name of Accelerate: `pytorch_model_fsdp[_{i}]_rank{R}.bin` or
  /// `optimizer[_{i}]_rank{R}.bin`. These files are always parts of a set. Files of other names are only if
  /// they hold DTensors: many programs write whole files, or parts that mean something else, for each rank.
  [[nodiscard]] bool is_accelerates() const;
};

/// Parses `*rank[_]R*.bin`, `.pt` or `.pth`. If "rank" comes several times, the last one with a number
/// counts. Nothing if the name is not of that form.
[[nodiscard]] std::optional<RankFileName> parse_rank_file_name(std::string_view name);

}  // namespace accel::ckpt
