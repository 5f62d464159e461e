#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace accel::ckpt {

/// The index beside a model in several files, as transformers writes it: which file has which tensor.
struct WeightIndex {
  std::filesystem::path path;
  std::map<std::string, std::string> files;  ///< Tensor name to file name.

  /// The files' names, sorted.
  [[nodiscard]] std::vector<std::string> file_names() const;
};

/// Parses `{"metadata": ..., "weight_map": {name: file}}`. Throws Error (kCorrupt) if it is not that.
[[nodiscard]] WeightIndex read_weight_index(const std::filesystem::path& path);

/// Throws Error (kCorrupt) unless `file` has the tensors that the index says, and no others. `names` must be
/// sorted.
void check_weight_index(const WeightIndex& index, const std::string& file,
                        const std::vector<std::string>& names);

}  // namespace accel::ckpt
