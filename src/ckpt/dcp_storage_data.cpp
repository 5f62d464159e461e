#include "ckpt/dcp_storage_data.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace accel::ckpt {

using pickle::Field;
using pickle::NodeList;
using pickle::NodePairs;
using pickle::NodeRef;
using pickle::Type;

struct DcpStorageData::Fields {
  Type metadata_index{kDcpModule, "MetadataIndex"};
  Type storage_info{kDcpModule, "_StorageInfo"};
  Field fqn{"MetadataIndex", "fqn"};
  Field offset{"MetadataIndex or _StorageInfo", "offset"};
  Field relative_path{"_StorageInfo", "relative_path"};
  Field length{"_StorageInfo", "length"};
  Field transforms{"_StorageInfo", "transform_descriptors"};
};

DcpStorageData::DcpStorageData(const NodePairs& storage_data, const DcpNames& names, std::size_t input_bytes)
    : budget_(input_bytes), places_(names.size()) {
  places_.reserve(storage_data.size());
  infos_.reserve(storage_data.size());
  Fields fields;
  DcpNameFinder finder(names);
  DcpDimsReader dims_reader;
  Dims dims;
  for (std::size_t i = 0; i < storage_data.size(); ++i) {
    const NodePairs index = fields.metadata_index.require(storage_data.key(i));
    const std::optional<std::uint32_t> id = finder.find(fields.fqn.require(index), "fqn");
    const std::optional<NodeRef> offset = fields.offset.find(index);
    const bool is_chunk = offset && !offset->is_none();
    if (is_chunk) dims_reader.read(*offset, dims, budget_);
    if (!id) continue;
    const std::uint32_t info = info_of(names[*id].fqn, storage_data.value(i), fields);
    if (is_chunk) {
      budget_.spend(dims.size() * sizeof(std::int64_t));
      places_.add_chunk(*id, dims, info);
    } else {
      places_.add_object(*id, info);
    }
  }
  places_.sort();
}

// Taken apart in the order in which the pickle has them, as going back to each from its chunk would wait for
// memory again and again.
std::uint32_t DcpStorageData::info_of(std::string_view fqn, NodeRef info, Fields& fields) {
  try {
    const NodePairs found = fields.storage_info.require(info);
    budget_.spend(sizeof(Info));
    infos_.push_back({pickle::require_size(fields.offset.require(found), "offset"),
                      pickle::require_size(fields.length.require(found), "length"),
                      file_of(fields.relative_path.require(found)),
                      transforms_of(fields.transforms.find(found))});
    return static_cast<std::uint32_t>(infos_.size() - 1);
  } catch (Error& e) {
    e.add_context(fmt::format("'{}'", fqn));
    throw;
  }
}

std::uint32_t DcpStorageData::file_of(NodeRef path) {
  // Mostly one string for all items of a file. Otherwise its name is kept for each, which is cheaper than to
  // look for it.
  for (const std::uint32_t file : {last_file_, last_file_ + 1, 0U}) {
    if (file < files_.size() && files_[file].ref == path.id()) return last_file_ = file;
  }
  budget_.spend(sizeof(File));
  files_.push_back({pickle::require_text(path, "relative_path"), path.id()});
  return last_file_ = static_cast<std::uint32_t>(files_.size() - 1);
}

// Few checkpoints have any.
std::uint32_t DcpStorageData::transforms_of(const std::optional<NodeRef>& transforms) {
  if (!transforms || transforms->is_none()) return 0;
  const std::optional<NodeList> names = transforms->sequence();
  if (!names) pickle::reject("transform_descriptors is not a list", *transforms);
  std::vector<std::string> list;
  for (std::size_t i = 0; i < names->size(); ++i) {
    list.emplace_back(pickle::require_text((*names)[i], "a transform"));
    budget_.spend(sizeof(std::string) + list.back().size());
  }
  if (transform_lists_.back() != list) transform_lists_.push_back(std::move(list));
  return static_cast<std::uint32_t>(transform_lists_.size() - 1);
}

std::optional<DcpRange> DcpStorageData::find_object(std::size_t id) {
  const std::optional<std::uint32_t> place = places_.find_object(id);
  if (!place) return std::nullopt;
  return range_of(*place);
}

DcpRange DcpStorageData::range_of(std::uint32_t place) {
  const Info& info = infos_[place];
  const std::string_view file = files_[info.file].name;
  const std::vector<std::string>& transforms = transform_lists_[info.transforms];
  budget_.spend(file.size());
  for (const std::string& transform : transforms) budget_.spend(sizeof(std::string) + transform.size());
  return {std::string(file), info.offset, info.length, transforms};
}

}  // namespace accel::ckpt
