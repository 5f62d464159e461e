#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/safetensors/header.hpp"
#include "ckpt/tensor/tensor_reader.hpp"
#include "helpers.hpp"

namespace accel::ckpt::testing {

/// All bytes of a checkpoint's tensor, after a check that its pieces cover it.
inline std::string read_tensor(Checkpoint& checkpoint, std::string_view name) {
  for (std::size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    if (checkpoint.tensors()[i].name != name) continue;
    checkpoint.check_coverage(i);
    const StoredTensor stored = checkpoint.locate(i);
    const std::int64_t numel = checked_numel(stored.shape);
    std::string bytes(static_cast<std::size_t>(numel) * item_bytes(stored.dtype), '?');
    TensorReader(checkpoint.directory())
        .read_range(stored, 0, numel, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }
  ADD_FAILURE() << "no tensor " << name;
  return "";
}

inline std::vector<std::string> tensor_names(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const TensorEntry& entry : checkpoint.tensors()) names.push_back(entry.name);
  return names;
}

inline std::vector<std::string> object_names(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const ObjectEntry& entry : checkpoint.objects()) names.push_back(entry.name);
  return names;
}

/// A safetensors file with these tensors, one after another.
inline void write_safetensors(const std::filesystem::path& path, const std::vector<Truth>& truths,
                              const StringMap& metadata = {}) {
  std::vector<SafetensorsEntry> entries;
  for (const Truth& truth : truths) entries.push_back({fqn_of(truth.path), truth.dtype, truth.shape, 0, 0});
  const SafetensorsLayout layout = plan_safetensors(std::move(entries), metadata);
  std::string bytes = layout.prefix;
  for (const SafetensorsEntry& entry : layout.header.entries) {
    for (const Truth& truth : truths) {
      if (fqn_of(truth.path) == entry.name) bytes += truth.data;
    }
  }
  write_file(path, bytes);
}

}  // namespace accel::ckpt::testing
