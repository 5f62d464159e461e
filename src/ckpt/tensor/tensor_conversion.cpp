#include "ckpt/tensor/tensor_conversion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "base/text.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& name, std::string_view what) {
  throw Error(ErrorKind::kUsage, fmt::format("weight_conversions: '{}': {}", name, what));
}

void check_not_negative(const std::string& name, const Dims& values) {
  if (std::any_of(values.begin(), values.end(), [](std::int64_t value) { return value < 0; }))
    fail(name, "a number is negative");
}

void check_dims(const std::string& name, const TensorPart& part) {
  std::set<int> used;
  for (const int dim : part.dims) {
    if (dim == TensorPart::kNewDim) continue;
    if (dim < 0 || static_cast<std::size_t>(dim) >= part.box.sizes.size() || !used.insert(dim).second)
      fail(name, fmt::format("'dims' names dimension {} of '{}' wrongly", dim, part.from));
  }
  for (std::size_t dim = 0; dim < part.box.sizes.size(); ++dim) {
    if (!used.contains(static_cast<int>(dim)) && part.box.sizes[dim] != 1)
      fail(name, fmt::format("'dims' lacks dimension {} of '{}'", dim, part.from));
  }
}

/// A list of integers, each of which `T` holds.
template <class T>
std::vector<T> integers_of(const std::string& name, const json& part, const char* key) {
  std::vector<T> result;
  for (const json& number : part.at(key)) {
    if (!number.is_number_integer() || !std::in_range<T>(number.get<std::int64_t>()) ||
        (number.is_number_unsigned() && !std::in_range<T>(number.get<std::uint64_t>())))
      fail(name, fmt::format("'{}' has {}, which is not an integer of that kind", key, number.dump()));
    result.push_back(number.get<T>());
  }
  return result;
}

TensorPart part_of(const std::string& name, const json& document) {
  TensorPart part{document.at("from"),
                  {integers_of<std::int64_t>(name, document, "begin"),
                   integers_of<std::int64_t>(name, document, "sizes")},
                  integers_of<std::int64_t>(name, document, "at"),
                  integers_of<int>(name, document, "dims")};
  if (part.box.offsets.size() != part.box.sizes.size() || part.at.size() != part.dims.size())
    fail(name, fmt::format("the lists of the part of '{}' differ in length", part.from));
  check_not_negative(name, part.box.offsets);
  check_not_negative(name, part.box.sizes);
  check_not_negative(name, part.at);
  check_dims(name, part);
  return part;
}

/// The size of the part in a dimension of the target.
std::int64_t size_in_target(const TensorPart& part, std::size_t dim) {
  return part.dims[dim] == TensorPart::kNewDim ? 1 : part.box.sizes[static_cast<std::size_t>(part.dims[dim])];
}

TensorConversion conversion_of(const json& document) {
  TensorConversion conversion{document.at("name"), document.value("from", std::string()), {}};
  if (!conversion.from.empty()) return conversion;
  for (const json& part : document.at("parts")) conversion.parts.push_back(part_of(conversion.name, part));
  if (conversion.parts.empty()) fail(conversion.name, "it has no parts");
  try {
    const Dims shape = shape_of(conversion.parts);
    std::vector<Box> boxes;
    for (const TensorPart& part : conversion.parts) {
      if (part.at.size() != shape.size())
        throw Error(ErrorKind::kUsage, "its parts differ in their number of dimensions");
      Box box{part.at, {}};
      for (std::size_t dim = 0; dim < shape.size(); ++dim) box.sizes.push_back(size_in_target(part, dim));
      boxes.push_back(std::move(box));
    }
    check_tiling(boxes, shape);
  } catch (const Error& error) {
    fail(conversion.name, error.message());
  }
  return conversion;
}

/// Names tell whether a checkpoint has the tensors of the directory or those of the model.
void check_tellable(std::span<const TensorConversion> conversions, const std::set<std::string>& targets) {
  if (conversions.empty()) return;
  std::set<std::string> sources;
  for (const TensorConversion& conversion : conversions) sources.merge(conversion.sources());
  if (!std::includes(targets.begin(), targets.end(), sources.begin(), sources.end()) &&
      !std::includes(sources.begin(), sources.end(), targets.begin(), targets.end()))
    return;
  throw Error(
      ErrorKind::kUsage,
      "weight_conversions: the names of one side are all names of the other, so that they do not tell "
      "which of the two a checkpoint has");
}

/// Returns the same elements as seen from the other tensor.
TensorPart inverse_of(const std::string& name, const TensorPart& part) {
  TensorPart result{name, {part.at, {}}, part.box.offsets, {}};
  for (std::size_t dim = 0; dim < part.dims.size(); ++dim)
    result.box.sizes.push_back(size_in_target(part, dim));
  for (std::size_t dim = 0; dim < part.box.sizes.size(); ++dim) {
    const auto found = std::find(part.dims.begin(), part.dims.end(), static_cast<int>(dim));
    result.dims.push_back(found == part.dims.end() ? TensorPart::kNewDim
                                                   : static_cast<int>(found - part.dims.begin()));
  }
  return result;
}

}  // namespace

std::set<std::string> TensorConversion::sources() const {
  if (!from.empty()) return {from};
  std::set<std::string> names;
  for (const TensorPart& part : parts) names.insert(part.from);
  return names;
}

std::vector<TensorConversion> parse_conversions(std::string_view text) {
  if (text.empty()) return {};
  std::vector<TensorConversion> conversions;
  std::set<std::string> names;
  try {
    const json list = parse_json(text);
    if (!list.is_array()) throw Error(ErrorKind::kUsage, "weight_conversions are not a list");
    for (const json& document : list) {
      conversions.push_back(conversion_of(document));
      if (!names.insert(conversions.back().name).second) fail(conversions.back().name, "it is there twice");
    }
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kUsage,
                fmt::format("weight_conversions are malformed: {}", without_json_tag(error.what())));
  }
  check_tellable(conversions, names);
  return conversions;
}

std::vector<TensorConversion> inverse(std::span<const TensorConversion> conversions) {
  std::vector<TensorConversion> result;
  std::map<std::string, std::size_t> index;  // The place of each name in `result`.
  for (const TensorConversion& conversion : conversions) {
    if (!conversion.from.empty()) result.push_back({conversion.from, conversion.name, {}});
    for (const TensorPart& part : conversion.parts) {
      const auto [entry, is_new] = index.try_emplace(part.from, result.size());
      if (is_new) result.push_back({part.from, {}, {}});
      result[entry->second].parts.push_back(inverse_of(conversion.name, part));
    }
  }
  return result;
}

Dims shape_of(std::span<const TensorPart> parts) {
  Dims shape;
  for (const TensorPart& part : parts) {
    shape.resize(std::max(shape.size(), part.at.size()), 0);
    for (std::size_t dim = 0; dim < part.at.size(); ++dim)
      shape[dim] = std::max(shape[dim], checked_add(part.at[dim], size_in_target(part, dim)));
  }
  return shape;
}

std::vector<Extent> extents_in_target(const TensorPart& part, std::span<const Extent> extents,
                                      std::uint64_t item_bytes) {
  std::vector<Extent> result;
  for (const Extent& extent : extents) {
    const std::optional<Box> shared = intersect(extent.box, part.box);
    if (!shared) continue;
    std::int64_t skipped = 0;  // Elements of the file from the extent's first to the first that is shared.
    for (std::size_t dim = 0; dim < shared->offsets.size(); ++dim)
      skipped += (shared->offsets[dim] - extent.box.offsets[dim]) * extent.strides[dim];
    Extent placed{extent.file,
                  extent.offset + static_cast<std::uint64_t>(skipped) * item_bytes,
                  {part.at, {}},
                  {},
                  extent.packed};
    for (std::size_t dim = 0; dim < part.dims.size(); ++dim) {
      const bool is_new = part.dims[dim] == TensorPart::kNewDim;
      const auto source = static_cast<std::size_t>(is_new ? 0 : part.dims[dim]);
      if (!is_new) placed.box.offsets[dim] += shared->offsets[source] - part.box.offsets[source];
      placed.box.sizes.push_back(is_new ? 1 : shared->sizes[source]);
      placed.strides.push_back(is_new ? 0 : extent.strides[source]);
    }
    result.push_back(std::move(placed));
  }
  return result;
}

}  // namespace accel::ckpt
