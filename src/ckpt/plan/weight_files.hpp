#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"

namespace accel::ckpt {

/// The names that transformers gives to the files of a model.
struct WeightFiles {
  std::string stem;       ///< The stem is "model", "pytorch_model", "adapter_model" or "optimizer".
  std::string extension;  ///< The extension is ".safetensors" or ".bin".

  [[nodiscard]] std::string single() const { return stem + extension; }
  /// The name of a shard, such as "model-00001-of-00003.safetensors"; `shard` counts from 0.
  [[nodiscard]] std::string shard(std::size_t shard, std::size_t shards) const;
  [[nodiscard]] std::string index() const { return stem + extension + ".index.json"; }
  /// Whether `name` is one of these names, for any number of shards.
  [[nodiscard]] bool belongs(const std::string& name) const;
};

/// The size of an item in the output.
[[nodiscard]] std::uint64_t bytes_of(const OutputItem& item);

/// The items, by index, that go into each file. Files are filled in the order of `state`, as save_pretrained
/// of transformers fills them, up to `max_shard_bytes` (0: one file). A larger tensor gets a file of its own.
/// Tied items are neither counted nor in the result.
[[nodiscard]] std::vector<std::vector<std::size_t>> split_into_shards(const OutputState& state,
                                                                      std::uint64_t max_shard_bytes);

/// The index of several files as transformers writes it: indented by two spaces, with sorted keys and a final
/// newline. `files` has the file of each tensor, by name.
[[nodiscard]] std::string index_json(const OutputState& state,
                                     const std::map<std::string, std::string>& files);

}  // namespace accel::ckpt
