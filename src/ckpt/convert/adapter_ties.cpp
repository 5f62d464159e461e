#include "ckpt/convert/adapter_ties.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "ckpt/tensor/compare.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

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

/// Whether the class of the model has a head over the vocabulary. The configuration may not name a class.
bool has_head(const json& config) {
  const json classes = config.value("architectures", json());
  if (!classes.is_array() || classes.empty()) return true;
  constexpr std::array<std::string_view, 6> kWithHead = {
      "ForCausalLM", "LMHead", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining", "DoubleHeads"};
  const std::string name = classes.front().is_string() ? classes.front().get<std::string>() : std::string();
  return std::any_of(kWithHead.begin(), kWithHead.end(),
                     [&](std::string_view part) { return name.find(part) != std::string::npos; });
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

std::vector<std::size_t> tied_ends(Checkpoint& base) {
  const fs::path directory = fs::is_directory(base.path()) ? base.path() : parent_of(base.path());
  if (!fs::exists(directory / "config.json")) return {};
  const json config = read_json_file(directory / "config.json");
  const json rows = setting(config, "vocab_size");
  const json tie = setting(config, "tie_word_embeddings");
  if (!rows.is_number_integer() || tie == false) return {};
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < base.tensors().size(); ++i) {
    const TensorEntry& entry = base.tensors()[i];
    if (entry.shape.size() == 2 && entry.shape[0] == rows.get<std::int64_t>() && !is_in_a_layer(entry.name))
      ends.push_back(i);
  }
  if (ends.size() == 1) return has_head(config) ? ends : std::vector<std::size_t>();
  std::erase_if(ends, [&, first = ends.empty() ? 0 : ends.front()](std::size_t end) {
    if (tie == true) return base.tensors()[end].shape != base.tensors()[first].shape;
    return end != first && !same_values(base, first, end, /*transposed=*/false);
  });
  return ends.size() > 1 ? ends : std::vector<std::size_t>();
}

bool same_values(Checkpoint& checkpoint, std::size_t one, std::size_t other, bool transposed) {
  const StoredTensor a = checkpoint.locate(one);
  const StoredTensor b = checkpoint.locate(other);
  const Dims wanted = transposed && b.shape.size() == 2 ? Dims{b.shape[1], b.shape[0]} : b.shape;
  if (a.dtype != b.dtype || a.shape != wanted) return false;
  if (!transposed) {
    TensorComparer comparer(checkpoint.directory(), checkpoint.directory(), [](std::uint64_t) {});
    return comparer.compare(a, b, {}).elements == 0;
  }
  const std::size_t item = item_bytes(a.dtype);
  const std::int64_t count = checked_numel(a.shape);
  TensorReader reader(checkpoint.directory());
  std::vector<std::byte> left(checked_nbytes(a.shape, item));
  std::vector<std::byte> right(left.size());
  reader.read_range(a, 0, count, left);
  reader.read_range(b, 0, count, right);
  const auto columns = static_cast<std::size_t>(a.shape.at(1));
  const auto rows = static_cast<std::size_t>(a.shape.at(0));
  for (std::size_t i = 0; i < rows * columns; ++i) {
    const std::size_t at = i % columns * rows + i / columns;
    if (std::memcmp(left.data() + i * item, right.data() + at * item, item) != 0) return false;
  }
  return true;
}

void check_finite(Checkpoint& checkpoint, std::size_t tensor, DType dtype) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 16;
  const StoredTensor stored = checkpoint.locate(tensor);
  if (!can_convert(stored.dtype, DType::kFloat32) || !can_convert(dtype, DType::kFloat32)) return;
  TensorReader reader(checkpoint.directory());
  const std::int64_t count = checked_numel(stored.shape);
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const auto elements = static_cast<std::size_t>(std::min(kBlock, count - at));
    std::vector<std::byte> bytes(elements * item_bytes(stored.dtype));
    reader.read_range(stored, at, at + static_cast<std::int64_t>(elements), bytes);
    const auto convert = [&](DType from, DType to) {
      if (from == to) return;
      std::vector<std::byte> converted(elements * item_bytes(to));
      convert_dtype(from, bytes, to, converted);
      bytes = std::move(converted);
    };
    convert(stored.dtype, dtype);
    convert(dtype, DType::kFloat32);
    for (std::size_t i = 0; i < elements; ++i) {
      float value = 0;
      std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(float));
      if (std::isfinite(value)) continue;
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("element {} of '{}' of the adapter is {} in {}",
                              at + static_cast<std::int64_t>(i), stored.name, value, torch_name(dtype)))
          .hint("the training has diverged, or the numbers are too large for the base's dtype");
    }
  }
}

}  // namespace accel::ckpt
