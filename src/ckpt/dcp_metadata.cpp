#include "ckpt/dcp_metadata.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/pickle_reader.hpp"
#include "ckpt/torch_tensor.hpp"

namespace accel::ckpt {
namespace {

using pickle::Global;
using pickle::Object;
using pickle::Pairs;
using pickle::Value;
using pickle::Values;

// (fqn, offset), as MetadataIndex compares; the offset is missing for objects.
using Index = std::pair<std::string, std::optional<Dims>>;

[[noreturn]] void reject(std::string_view what, const Value& found) {
  throw Error(ErrorKind::kCorrupt, fmt::format("{}, found {}", what, pickle::describe(found)));
}

const Value& require(const Pairs& fields, std::string_view name, std::string_view of) {
  const Value* value = pickle::find(fields, name);
  if (value == nullptr) throw Error(ErrorKind::kCorrupt, fmt::format("{} without '{}'", of, name));
  return *value;
}

// The __dict__ of an instance of a dataclass called `type`; its module has moved between versions of torch.
const Pairs* fields_of(const Value& value, std::string_view type) {
  const auto* object = value.get<Object>();
  if (object == nullptr) return nullptr;
  const auto* name = (*object)->callable.get<Global>();
  if (name == nullptr || name->name() != type || !name->module().starts_with("torch.")) return nullptr;
  static const Pairs kNoFields;
  if ((*object)->states.empty()) return &kNoFields;
  const auto* state = (*object)->states.front().get<pickle::Dict>();
  return state != nullptr ? &state->items : nullptr;
}

const Pairs& require_fields(const Value& value, std::string_view type) {
  const Pairs* fields = fields_of(value, type);
  if (fields == nullptr) reject(fmt::format("a {} is expected", type), value);
  return *fields;
}

const Pairs& require_dict(const Value& value, std::string_view what) {
  const Pairs* pairs = pickle::mapping_of(value);
  if (pairs == nullptr) reject(fmt::format("{} is not a dict", what), value);
  return *pairs;
}

const std::string& require_text(const Value& value, std::string_view what) {
  const auto* text = value.get<std::string>();
  if (text == nullptr) reject(fmt::format("{} is not a string", what), value);
  return *text;
}

std::uint64_t require_count(const Value& value, std::string_view what) {
  const auto* number = value.get<std::int64_t>();
  if (number == nullptr || *number < 0) reject(fmt::format("{} is not a size", what), value);
  return static_cast<std::uint64_t>(*number);
}

// TensorProperties pickles as a tuple of 5 (torch 2.15: 6) whose first is the dtype.
DType dtype_of_properties(const Value& value) {
  const auto* object = value.get<Object>();
  const Values* state = object != nullptr && !(*object)->states.empty()
                            ? pickle::sequence_of((*object)->states.front())
                            : nullptr;
  if (state == nullptr || state->size() < 5 || state->size() > 6)
    reject("tensor properties are expected", value);
  const auto* name = state->front().get<Global>();
  const auto dtype = name != nullptr ? dtype_of_torch_name(name->name()) : std::nullopt;
  if (!dtype) reject("unknown dtype", state->front());
  return *dtype;
}

StatePath path_of(const Value& value) {
  const Values* keys = pickle::sequence_of(value);
  if (keys == nullptr) reject("a path of planner_data is not a tuple", value);
  StatePath path;
  for (const Value& key : *keys) {
    if (const auto* text = key.get<std::string>()) {
      path.emplace_back(*text);
    } else if (const auto* number = key.get<std::int64_t>()) {
      path.emplace_back(*number);
    } else {
      reject("a path of planner_data has a key that is neither string nor integer", key);
    }
  }
  return path;
}

DcpRange range_of(const Value& value) {
  const Pairs& fields = require_fields(value, "_StorageInfo");
  DcpRange range{require_text(require(fields, "relative_path", "_StorageInfo"), "relative_path"),
                 require_count(require(fields, "offset", "_StorageInfo"), "offset"),
                 require_count(require(fields, "length", "_StorageInfo"), "length"),
                 {}};
  const Value* transforms = pickle::find(fields, "transform_descriptors");
  if (transforms == nullptr || transforms->is_none()) return range;
  const Values* names = pickle::sequence_of(*transforms);
  if (names == nullptr) reject("transform_descriptors is not a list", *transforms);
  for (const Value& name : *names) range.transforms.push_back(require_text(name, "a transform"));
  return range;
}

std::map<Index, DcpRange> ranges_of(const Value& storage_data) {
  std::map<Index, DcpRange> ranges;
  for (const auto& [key, value] : require_dict(storage_data, "storage_data")) {
    const Pairs& fields = require_fields(key, "MetadataIndex");
    Index index{require_text(require(fields, "fqn", "MetadataIndex"), "fqn"), std::nullopt};
    const Value* offset = pickle::find(fields, "offset");
    if (offset != nullptr && !offset->is_none()) index.second = dims_of(*offset);
    ranges.insert_or_assign(std::move(index), range_of(value));
  }
  return ranges;
}

DcpRange take_range(std::map<Index, DcpRange>& ranges, const std::string& fqn, std::optional<Dims> offset) {
  const auto found = ranges.find({fqn, offset});
  if (found == ranges.end()) {
    throw Error(ErrorKind::kCorrupt, fmt::format("storage_data has no place for {}",
                                                 offset ? "the chunk at " + to_string(*offset) : "it"));
  }
  return found->second;
}

DcpTensor tensor_of(const std::string& fqn, const Pairs& fields, std::map<Index, DcpRange>& ranges) {
  DcpTensor tensor;
  tensor.fqn = fqn;
  tensor.dtype = dtype_of_properties(require(fields, "properties", "TensorStorageMetadata"));
  tensor.shape = dims_of(require(fields, "size", "TensorStorageMetadata"));
  const Value& chunks = require(fields, "chunks", "TensorStorageMetadata");
  const Values* list = pickle::sequence_of(chunks);
  if (list == nullptr) reject("chunks is not a list", chunks);
  for (const Value& item : *list) {
    const Pairs& chunk = require_fields(item, "ChunkStorageMetadata");
    Box box{dims_of(require(chunk, "offsets", "ChunkStorageMetadata")),
            dims_of(require(chunk, "sizes", "ChunkStorageMetadata"))};
    check_within(box, tensor.shape);
    DcpRange range = take_range(ranges, fqn, box.offsets);
    // Several ranks may have an empty shard at one offset; then storage_data keeps the place of only one of
    // them, or of a real chunk there.
    if (box.numel() == 0 && checked_numel(tensor.shape) != 0) continue;
    tensor.chunks.push_back({std::move(box), std::move(range)});
  }
  return tensor;
}

DcpMetadata metadata_of(const Value& root) {
  const Pairs& fields = require_fields(root, "Metadata");
  DcpMetadata metadata;
  if (const Value* version = pickle::find(fields, "version"); version != nullptr && !version->is_none()) {
    metadata.version = require_text(*version, "version");
  }
  std::map<Index, DcpRange> ranges = ranges_of(require(fields, "storage_data", "Metadata"));
  const Value* planner = pickle::find(fields, "planner_data");
  std::map<std::string_view, const Value*> paths;
  if (planner != nullptr && !planner->is_none()) {
    for (const auto& [key, value] : require_dict(*planner, "planner_data")) {
      paths[require_text(key, "a key of planner_data")] = &value;
    }
  }
  for (const auto& [key, value] :
       require_dict(require(fields, "state_dict_metadata", "Metadata"), "state_dict_metadata")) {
    const std::string& fqn = require_text(key, "a key of state_dict_metadata");
    try {
      const auto known = paths.find(fqn);
      StatePath path = known != paths.end() ? path_of(*known->second) : StatePath{fqn};
      if (const Pairs* tensor = fields_of(value, "TensorStorageMetadata")) {
        metadata.tensors.push_back(tensor_of(fqn, *tensor, ranges));
        metadata.tensors.back().path = std::move(path);
        metadata.tensors.back().position = metadata.tensors.size() - 1;
      } else if (fields_of(value, "BytesStorageMetadata") != nullptr) {
        metadata.objects.push_back({fqn, std::move(path), take_range(ranges, fqn, std::nullopt)});
      } else {
        reject("neither a tensor nor an object", value);
      }
    } catch (Error& e) {
      e.add_context(fmt::format("'{}'", fqn));
      throw;
    }
  }
  return metadata;
}

template <class T>
void sort_unique(std::vector<T>& entries) {
  std::sort(entries.begin(), entries.end(), [](const T& a, const T& b) { return a.fqn < b.fqn; });
  const auto twice = std::adjacent_find(entries.begin(), entries.end(),
                                        [](const T& a, const T& b) { return a.fqn == b.fqn; });
  if (twice != entries.end()) throw Error(ErrorKind::kCorrupt, fmt::format("'{}' comes twice", twice->fqn));
}

}  // namespace

DcpMetadata parse_dcp_metadata(std::span<const std::byte> bytes) {
  DcpMetadata metadata = metadata_of(pickle::parse(bytes));
  sort_unique(metadata.tensors);
  sort_unique(metadata.objects);
  return metadata;
}

}  // namespace accel::ckpt
