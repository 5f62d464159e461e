#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// The index beside a model in several files, as transformers writes it. It says which file has which tensor.
struct WeightIndex {
  std::filesystem::path path;
  std::map<std::string, std::string> files;  ///< Maps a tensor's name to that of its file, without "./".

  /// The files' names, sorted.
  [[nodiscard]] std::vector<std::string> file_names() const;
};

/// Parses `{"metadata": ..., "weight_map": {name: file}}`. Throws Error (kCorrupt) for anything else.
[[nodiscard]] WeightIndex read_weight_index(const std::filesystem::path& path);

/// Throws Error (kCorrupt) unless `names`, the tensors in `file`, are those that the index puts there.
/// `names` must be sorted.
void check_weight_index(const WeightIndex& index, const std::string& file,
                        const std::vector<std::string>& names);

/// One of several files of a model, as transformers names them: "model-00002-of-00003.safetensors". Either
/// number may have six digits ("model-00001-of-000163.safetensors").
struct WeightShard {
  std::string stem;  ///< The stem, such as "model".
  int number = 0;    ///< The number counts from 1.
  int count = 0;
  std::string extension;  ///< The extension, such as ".safetensors".
  int number_digits = 5;  ///< The width of `number` with its leading zeros.
  int count_digits = 5;   ///< The width of `count` with its leading zeros.
};

/// The names of the indexes `*{extension}.index.json` in `directory`, sorted, whether they can be read or
/// not.
[[nodiscard]] std::vector<std::string> index_names_in(const std::filesystem::path& directory,
                                                      std::string_view extension);

/// Parses a name such as "model-00002-of-00003.safetensors"; nothing if it is not of that form.
[[nodiscard]] std::optional<WeightShard> parse_weight_shard(std::string_view name);

/// The file name of the shard: the inverse of parse_weight_shard.
[[nodiscard]] std::string to_string(const WeightShard& shard);

/// The name of the first file that is missing in `directory` from the set that `name` belongs to. Nothing if
/// the set is complete, or if `name` is not the name of a shard.
[[nodiscard]] std::optional<std::string> missing_shard(const std::filesystem::path& directory,
                                                       std::string_view name);

}  // namespace accel::ckpt
