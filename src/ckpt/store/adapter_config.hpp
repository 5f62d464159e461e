#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/name_pattern.hpp"

namespace accel::ckpt {

/// What PEFT's adapter_config.json says of a LoRA adapter: of which rank the matrices of a module are, and
/// what their product is multiplied with.
struct AdapterConfig {
  double rank = 0;
  double alpha = 0;
  bool divides_by_root = false;  ///< With `use_rslora` the scaling is alpha / sqrt(rank), else alpha / rank.
  bool fan_in_fan_out = false;   ///< The weights of the wrapped layers are [in, out], as those of Conv1D.
  /// `rank_pattern` and `alpha_pattern`: the first pattern that matches a module, or what follows a dot of
  /// its name, gives the value. They have the order of the file. Ranks are positive whole numbers, and
  /// alphas are finite in float32.
  std::vector<std::pair<NamePattern, double>> ranks;
  std::vector<std::pair<NamePattern, double>> alphas;

  /// The rank for a module, by its name in the base model.
  [[nodiscard]] double rank_of(std::string_view module) const;
  [[nodiscard]] double scaling_of(std::string_view module) const;
};

/// Reads the adapter_config.json at `path`. Throws Error, which names the file: kFailure if the adapter is
/// not one of plain LoRA, whose product alone says what it adds to a weight, and for settings that are not
/// known here; kCorrupt if the file is malformed.
[[nodiscard]] AdapterConfig read_adapter_config(const std::filesystem::path& path);

}  // namespace accel::ckpt
