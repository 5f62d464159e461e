#include "ckpt/convert/adapter_ties.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/files/json_text.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The value of a setting of a model, which models of text and images have in a part of their configuration.
json setting(const json& config, const char* key) {
  if (!config.is_object()) return nullptr;
  if (config.contains(key)) return config.at(key);
  const auto part = config.find("text_config");
  return part != config.end() && part->is_object() ? part->value(key, json()) : json();
}

/// The size of the vocabulary if `config` ties the head to the embedding.
std::optional<std::int64_t> tied_vocabulary(const fs::path& config) {
  if (!fs::exists(config)) return std::nullopt;
  const json document = read_json_file(config);
  const json size = setting(document, "vocab_size");
  if (setting(document, "tie_word_embeddings") != true || !size.is_number_integer()) return std::nullopt;
  return size.get<std::int64_t>();
}

/// Whether a component of a name is a number, as that of a layer is.
bool is_in_a_layer(std::string_view name) {
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('.'));
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) return true;
    name.remove_prefix(std::min(part.size() + 1, name.size()));
  }
  return false;
}

}  // namespace

void check_adapter_ties(const Checkpoint& base, const OutputState& merged) {
  const fs::path directory = fs::is_directory(base.path()) ? base.path() : base.path().parent_path();
  const std::optional<std::int64_t> rows = tied_vocabulary(directory / "config.json");
  if (!rows) return;
  std::vector<std::size_t> ends;  // The indices of embedding and head.
  for (std::size_t i = 0; i < merged.tensors.size(); ++i) {
    const OutputItem& item = merged.tensors[i];
    if (item.shape.size() == 2 && item.shape[0] == *rows && !is_in_a_layer(fqn_of(item.path)))
      ends.push_back(i);
  }
  for (const std::size_t changed : ends) {
    const OutputItem& item = merged.tensors[changed];
    if (!item.update && item.source == changed) continue;
    for (const std::size_t other : ends) {
      if (other == changed || merged.tensors[other].shape != item.shape) continue;
      throw Error(ErrorKind::kFailure,
                  fmt::format("the adapter changes '{}', which '{}' ties to '{}' (tie_word_embeddings), and "
                              "the base has both",
                              fqn_of(item.path), (directory / "config.json").string(),
                              fqn_of(merged.tensors[other].path)))
          .hint(
              "merge it in Python: merge_and_unload() of the PeftModel, then save_pretrained(); if the two "
              "are different tensors, set tie_word_embeddings to false in the base's config.json");
    }
  }
}

}  // namespace accel::ckpt
