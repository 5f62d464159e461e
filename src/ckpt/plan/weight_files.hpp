#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ckpt/plan/output_plan.hpp"

namespace accel::ckpt {

/// How transformers names the files of a model.
struct WeightFiles {
  std::string stem;       ///< "model", "pytorch_model", "optimizer".
  std::string extension;  ///< ".safetensors", ".bin".

  [[nodiscard]] std::string single() const { return stem + extension; }
  /// "model-00001-of-00003.safetensors"; `shard` counts from 0.
  [[nodiscard]] std::string shard(std::size_t shard, std::size_t shards) const;
  [[nodiscard]] std::string index() const { return stem + extension + ".index.json"; }
  /// Whether a file of this name is one of these, of any number of shards.
  [[nodiscard]] bool belongs(const std::string& name) const;
};

/// What an item's bytes come to.
[[nodiscard]] std::uint64_t bytes_of(const OutputItem& item);

/// Which items (by index, in order) go into which file: greedily, in the order of `state`, as transformers'
/// save_pretrained splits; a tensor above `max_shard_bytes` gets a file of its own. Tied items are left out
/// of the count and of the result. 0: one file.
[[nodiscard]] std::vector<std::vector<std::size_t>> split_into_shards(const OutputState& state,
                                                                      std::uint64_t max_shard_bytes);

/// The index of several files as transformers writes it: two spaces, sorted keys, a final newline.
[[nodiscard]] std::string index_json(const OutputState& state,
                                     const std::map<std::string, std::string>& files);

}  // namespace accel::ckpt
