#include "ckpt/dcp_metadata.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/dcp_places.hpp"
#include "ckpt/pickle_document.hpp"
#include "ckpt/pickle_fields.hpp"

namespace accel::ckpt {
namespace {

using pickle::Field;
using pickle::NodeList;
using pickle::NodePairs;
using pickle::NodeRef;
using pickle::reject;
using pickle::Type;

// Metadata and all that it holds are dataclasses of torch; their modules have moved between its versions.
constexpr std::string_view kModule = "torch.";

// What is built may take some times the memory of the input, which is more than any real metadata needs: a
// chunk has 150 bytes or more of its own there. Parts that are shared can only be meant to exhaust it.
constexpr std::uint64_t kBytesPerByte = 8;
constexpr std::uint64_t kBytesAtLeast = std::uint64_t{64} << 20;

class MetadataReader {
 public:
  MetadataReader(const pickle::Document& document, std::size_t input_bytes)
      : document_(&document), bytes_left_(kBytesAtLeast + kBytesPerByte * input_bytes) {}

  DcpMetadata run() {
    const NodePairs fields = metadata_.require(document_->root());
    DcpMetadata metadata;
    if (const auto version = version_.find(fields); version && !version->is_none())
      metadata.version = pickle::require_text(*version, "version");
    const NodePairs state_dict =
        pickle::require_mapping(state_dict_metadata_.require(fields), "state_dict_metadata");
    read_names(state_dict);
    places_ = DcpPlaces(names_.size());
    read_places(pickle::require_mapping(storage_data_.require(fields), "storage_data"));
    places_.sort();
    read_paths(planner_data_.find(fields));
    for (std::size_t id = 0; id < names_.size(); ++id) read_entry(id, state_dict, metadata);
    number(metadata.tensors);
    return metadata;
  }

 private:
  struct Name {
    std::string_view fqn;
    pickle::Ref ref;      // Of the text.
    std::uint32_t entry;  // Of state_dict_metadata.
  };

  void spend(std::uint64_t bytes) {
    if (bytes > bytes_left_) {
      throw Error(ErrorKind::kCorrupt, "what it says, with shared parts written out, would fill the memory");
    }
    bytes_left_ -= bytes;
  }

  // A name's place in `names_`, which is sorted, is its id.
  void read_names(const NodePairs& state_dict) {
    names_.reserve(state_dict.size());
    for (std::size_t i = 0; i < state_dict.size(); ++i) {
      names_.push_back({pickle::require_text(state_dict.key(i), "a key of state_dict_metadata"),
                        state_dict.key(i).id(), static_cast<std::uint32_t>(i)});
    }
    const auto less = [](const Name& a, const Name& b) { return a.fqn < b.fqn; };
    std::stable_sort(names_.begin(), names_.end(), less);
    const auto twice = std::adjacent_find(names_.begin(), names_.end(),
                                          [](const Name& a, const Name& b) { return a.fqn == b.fqn; });
    if (twice != names_.end()) throw Error(ErrorKind::kCorrupt, fmt::format("'{}' comes twice", twice->fqn));
    ids_.resize(names_.size());
    for (std::size_t id = 0; id < names_.size(); ++id)
      ids_[names_[id].entry] = static_cast<std::uint32_t>(id);
  }

  // The other dicts mostly name the entries in the order of state_dict_metadata, some times over; only if one
  // does not, a table is made.
  std::optional<std::uint32_t> id_of(NodeRef name, std::string_view what) {
    const std::array<std::size_t, 3> guesses{last_entry_, last_entry_ + 1, std::size_t{0}};
    // Equal references are equal texts, which need not be fetched then.
    for (const std::size_t guess : guesses) {
      if (guess < ids_.size() && names_[ids_[guess]].ref == name.id()) return found_at(guess);
    }
    const std::string_view fqn = pickle::require_text(name, what);
    for (const std::size_t guess : guesses) {
      if (guess < ids_.size() && names_[ids_[guess]].fqn == fqn) return found_at(guess);
    }
    if (table_.empty()) {
      table_.reserve(names_.size());
      for (std::size_t id = 0; id < names_.size(); ++id)
        table_.emplace(names_[id].fqn, static_cast<std::uint32_t>(id));
    }
    const auto found = table_.find(fqn);
    if (found == table_.end()) return std::nullopt;
    last_entry_ = names_[found->second].entry;
    return found->second;
  }

  std::uint32_t found_at(std::size_t entry) {
    last_entry_ = entry;
    return ids_[entry];
  }

  void read_places(const NodePairs& storage_data) {
    places_.reserve(storage_data.size());
    infos_.reserve(storage_data.size());
    for (std::size_t i = 0; i < storage_data.size(); ++i) {
      const NodePairs index = metadata_index_.require(storage_data.key(i));
      const std::optional<std::uint32_t> id = id_of(fqn_.require(index), "fqn");
      const NodeRef value = storage_data.value(i);
      const std::optional<NodeRef> offset = offset_.find(index);
      const bool is_chunk = offset && !offset->is_none();
      if (is_chunk) read_dims(*offset, scratch_);
      if (!id) continue;
      if (is_chunk) {
        spend(scratch_.size() * sizeof(std::int64_t));
        places_.add_chunk(*id, scratch_, place_of(*id, value));
      } else {
        places_.add_object(*id, place_of(*id, value));
      }
    }
  }

  void read_paths(const std::optional<NodeRef>& planner_data) {
    paths_.resize(names_.size());
    if (!planner_data || planner_data->is_none()) return;
    const NodePairs pairs = pickle::require_mapping(*planner_data, "planner_data");
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto id = id_of(pairs.key(i), "a key of planner_data");
      if (id) paths_[*id] = pairs.value(i).id();
    }
  }

  void read_entry(std::size_t id, const NodePairs& state_dict, DcpMetadata& metadata) {
    const Name& name = names_[id];
    const NodeRef value = state_dict.value(name.entry);
    try {
      if (const auto fields = tensor_.find(value)) {
        metadata.tensors.push_back(tensor_of(id, *fields));
      } else if (bytes_.find(value)) {
        const std::optional<std::uint32_t> place = places_.find_object(id);
        if (!place) throw Error(ErrorKind::kCorrupt, "storage_data has no place for it");
        metadata.objects.push_back({std::string(name.fqn), path_of(id), range_of(*place)});
      } else {
        reject("neither a tensor nor an object", value);
      }
    } catch (Error& e) {
      e.add_context(fmt::format("'{}'", name.fqn));
      throw;
    }
  }

  // From places among all entries to places among the tensors.
  void number(std::vector<DcpTensor>& tensors) const {
    std::vector<std::size_t> before(names_.size() + 1, 0);
    for (const DcpTensor& tensor : tensors) before[tensor.position + 1] = 1;
    std::partial_sum(before.begin(), before.end(), before.begin());
    for (DcpTensor& tensor : tensors) tensor.position = before[tensor.position];
  }

  DcpTensor tensor_of(std::size_t id, const NodePairs& fields) {
    DcpTensor tensor;
    tensor.fqn = names_[id].fqn;
    tensor.position = names_[id].entry;
    tensor.path = path_of(id);
    tensor.dtype = dtype_of(properties_.require(fields));
    read_dims(size_.require(fields), tensor.shape);
    spend(sizeof(DcpTensor) + tensor.fqn.size() + tensor.shape.size() * sizeof(std::int64_t));
    const NodeRef chunks = chunks_.require(fields);
    const std::optional<NodeList> list = chunks.sequence();
    if (!list) reject("chunks is not a list", chunks);
    spend(list->size() * sizeof(DcpChunk));
    tensor.chunks.reserve(list->size());
    places_.select(id);
    for (std::size_t i = 0; i < list->size(); ++i) {
      DcpChunk chunk{box_of((*list)[i]), {}};
      check_within(chunk.box, tensor.shape);
      const std::optional<std::uint32_t> place = places_.find_chunk(chunk.box.offsets);
      if (!place) {
        throw Error(ErrorKind::kCorrupt, fmt::format("storage_data has no place for the chunk at {}",
                                                     to_string(chunk.box.offsets)));
      }
      // Several ranks may have an empty shard at one offset; then storage_data keeps the place of only one of
      // them, or of a real chunk there.
      if (chunk.box.numel() == 0 && checked_numel(tensor.shape) != 0) continue;
      chunk.where = range_of(*place);
      tensor.chunks.push_back(std::move(chunk));
    }
    return tensor;
  }

  Box box_of(NodeRef chunk) {
    const NodePairs fields = chunk_.require(chunk);
    Box box;
    read_dims(offsets_.require(fields), box.offsets);
    read_dims(sizes_.require(fields), box.sizes);
    spend((box.offsets.size() + box.sizes.size()) * sizeof(std::int64_t));
    return box;
  }

  // The storage info's index in infos_: taken apart here, in the order in which the pickle has them, as
  // going back to each from its chunk would wait for memory again and again.
  std::uint32_t place_of(std::uint32_t id, NodeRef info) {
    try {
      const NodePairs fields = storage_info_.require(info);
      spend(sizeof(StorageInfo));
      infos_.push_back({pickle::require_size(offset_.require(fields), "offset"),
                        pickle::require_size(length_.require(fields), "length"),
                        file_of(relative_path_.require(fields)), transforms_of(transforms_.find(fields))});
      return static_cast<std::uint32_t>(infos_.size() - 1);
    } catch (Error& e) {
      e.add_context(fmt::format("'{}'", names_[id].fqn));
      throw;
    }
  }

  std::uint32_t file_of(NodeRef path) {
    // Mostly one string for all items of a file. Otherwise its name is kept for each, which is cheaper than to
    // look for it.
    for (const std::uint32_t file : {last_file_, last_file_ + 1, 0U}) {
      if (file < files_.size() && files_[file].ref == path.id()) return last_file_ = file;
    }
    spend(sizeof(File));
    files_.push_back({pickle::require_text(path, "relative_path"), path.id()});
    return last_file_ = static_cast<std::uint32_t>(files_.size() - 1);
  }

  // Few checkpoints have any.
  std::uint32_t transforms_of(const std::optional<NodeRef>& transforms) {
    if (!transforms || transforms->is_none()) return 0;
    const std::optional<NodeList> names = transforms->sequence();
    if (!names) reject("transform_descriptors is not a list", *transforms);
    std::vector<std::string> list;
    for (std::size_t i = 0; i < names->size(); ++i) {
      list.emplace_back(pickle::require_text((*names)[i], "a transform"));
      spend(sizeof(std::string) + list.back().size());
    }
    if (transform_lists_.back() != list) transform_lists_.push_back(std::move(list));
    return static_cast<std::uint32_t>(transform_lists_.size() - 1);
  }

  DcpRange range_of(std::uint32_t place) {
    const StorageInfo& info = infos_[place];
    const std::string_view file = files_[info.file].name;
    const std::vector<std::string>& transforms = transform_lists_[info.transforms];
    spend(file.size());
    for (const std::string& transform : transforms) spend(sizeof(std::string) + transform.size());
    return {std::string(file), info.offset, info.length, transforms};
  }

  // TensorProperties pickles as a tuple of 5 (torch 2.15: 6) whose first is the dtype.
  DType dtype_of(NodeRef properties) {
    const auto call = properties.call();
    const auto state = call && !call->states().empty() ? call->states()[0].sequence() : std::nullopt;
    if (!state || state->size() < 5 || state->size() > 6)
      reject("tensor properties are expected", properties);
    const NodeRef dtype = (*state)[0];
    if (dtype_ && dtype.id() == dtype_id_) return *dtype_;
    const auto name = dtype.global();
    dtype_ = name && name->module == "torch" ? dtype_of_torch_name(name->name) : std::nullopt;
    dtype_id_ = dtype.id();
    if (!dtype_) reject("unknown dtype", dtype);
    return *dtype_;
  }

  StatePath path_of(std::size_t id) {
    if (paths_[id] == pickle::Ref()) return {std::string(names_[id].fqn)};
    const NodeRef value(document_->root().graph(), paths_[id]);
    const std::optional<NodeList> keys = value.sequence();
    if (!keys) reject("a path of planner_data is not a tuple", value);
    spend(keys->size() * sizeof(PathKey));
    StatePath path;
    path.reserve(keys->size());
    for (std::size_t i = 0; i < keys->size(); ++i) {
      const NodeRef key = (*keys)[i];
      if (const auto text = key.text()) {
        spend(text->size());
        path.emplace_back(std::in_place_type<std::string>, *text);
      } else if (const auto number = key.integer()) {
        path.emplace_back(*number);
      } else {
        reject("a path of planner_data has a key that is neither string nor integer", key);
      }
    }
    return path;
  }

  // A torch.Size, or any sequence of integers.
  void read_dims(NodeRef value, Dims& dims) {
    std::optional<NodeList> items = value.sequence();
    if (!items && torch_size_.is(value)) {
      const NodeList args = value.call()->args();
      items = args.empty() ? args : args[0].sequence();
    }
    if (!items) reject("a tensor whose shape is", value);
    spend(items->size());
    dims.clear();
    dims.reserve(items->size());
    for (std::size_t i = 0; i < items->size(); ++i) {
      const std::optional<std::int64_t> dim = (*items)[i].integer();
      if (!dim || *dim < 0) reject("a dimension is not a size", (*items)[i]);
      dims.push_back(*dim);
    }
  }

  struct StorageInfo {
    std::uint64_t offset;
    std::uint64_t length;
    std::uint32_t file;
    std::uint32_t transforms;
  };
  struct File {
    std::string_view name;
    pickle::Ref ref;  // Of the text.
  };

  const pickle::Document* document_;
  std::uint64_t bytes_left_;
  std::vector<Name> names_;
  std::vector<std::uint32_t> ids_;  // By entry of state_dict_metadata.
  std::size_t last_entry_ = 0;
  std::unordered_map<std::string_view, std::uint32_t> table_;
  std::vector<pickle::Ref> paths_;  // By id.
  DcpPlaces places_;  // Their values are indices into infos_.
  std::vector<StorageInfo> infos_;
  std::vector<File> files_;
  std::uint32_t last_file_ = 0;
  std::vector<std::vector<std::string>> transform_lists_{{}};
  Dims scratch_;
  std::optional<DType> dtype_;
  pickle::Ref dtype_id_;

  Type metadata_{kModule, "Metadata"};
  Type tensor_{kModule, "TensorStorageMetadata"};
  Type bytes_{kModule, "BytesStorageMetadata"};
  Type chunk_{kModule, "ChunkStorageMetadata"};
  Type metadata_index_{kModule, "MetadataIndex"};
  Type storage_info_{kModule, "_StorageInfo"};
  Type torch_size_{"torch", "Size"};
  Field state_dict_metadata_{"Metadata", "state_dict_metadata"};
  Field planner_data_{"Metadata", "planner_data"};
  Field storage_data_{"Metadata", "storage_data"};
  Field version_{"Metadata", "version"};
  Field properties_{"TensorStorageMetadata", "properties"};
  Field size_{"TensorStorageMetadata", "size"};
  Field chunks_{"TensorStorageMetadata", "chunks"};
  Field offsets_{"ChunkStorageMetadata", "offsets"};
  Field sizes_{"ChunkStorageMetadata", "sizes"};
  Field fqn_{"MetadataIndex", "fqn"};
  Field offset_{"MetadataIndex or _StorageInfo", "offset"};
  Field relative_path_{"_StorageInfo", "relative_path"};
  Field length_{"_StorageInfo", "length"};
  Field transforms_{"_StorageInfo", "transform_descriptors"};
};

}  // namespace

DcpMetadata parse_dcp_metadata(std::span<const std::byte> bytes) {
  const pickle::Document document(bytes);
  return MetadataReader(document, bytes.size()).run();
}

}  // namespace accel::ckpt
