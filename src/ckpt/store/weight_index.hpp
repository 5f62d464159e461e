#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
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

/// One of several files of a model, as transformers names them: "model-00002-of-00003.safetensors". Either
/// number may have six digits ("model-00001-of-000163.safetensors").
struct WeightShard {
  std::string stem;  ///< "model".
  int number = 0;    ///< From 1.
  int count = 0;
  std::string extension;  ///< ".safetensors".
  int number_digits = 5;  ///< With leading zeros.
  int count_digits = 5;
};

/// The names of the indexes `*{extension}.index.json` in `directory`, sorted, whether they can be read or
/// not.
[[nodiscard]] std::vector<std::string> index_names_in(const std::filesystem::path& directory,
                                                      std::string_view extension);

/// Nothing if the name is not of that form.
[[nodiscard]] std::optional<WeightShard> parse_weight_shard(std::string_view name);

/// The opposite of parse_weight_shard.
[[nodiscard]] std::string to_string(const WeightShard& shard);

/// The name of the first file that `directory` lacks of the set that `name` belongs to; nothing if the set is
/// complete, or `name` is not one of several.
[[nodiscard]] std::optional<std::string> missing_shard(const std::filesystem::path& directory,
                                                       std::string_view name);

}  // namespace accel::ckpt
