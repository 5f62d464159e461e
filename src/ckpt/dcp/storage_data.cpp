#include "ckpt/dcp/storage_data.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/error_context.hpp"

namespace accel::ckpt {

using pickle::Field;
using pickle::NodeList;
using pickle::NodePairs;
using pickle::NodeRef;
using pickle::Type;

// Collects the files of the entries.
class DcpStorageData::FileList {
 public:
  explicit FileList(DcpBudget& budget) : budget_(budget) {}

  std::uint32_t file_of(NodeRef path, std::uint32_t transforms) {
    // The items of a file mostly have one string, and the items of a rank have the strings of its files in
    // turn. Otherwise a file is kept for each item, which is cheaper than a search for its name.
    for (const std::uint32_t file : {last_, last_ + 1, 0U}) {
      if (file < refs_.size() && refs_[file] == path.id() && entries_[file].transforms == transforms)
        return last_ = file;
    }
    const std::string_view name = pickle::require_text(path, "relative_path");
    if (!entries_.empty() && entries_[last_].name == name && entries_[last_].transforms == transforms)
      return last_;
    budget_.spend(sizeof(DcpFile) + name.size());
    entries_.push_back({name, transforms});
    refs_.push_back(path.id());
    return last_ = static_cast<std::uint32_t>(entries_.size() - 1);
  }

  // Few checkpoints have transforms.
  std::uint32_t transforms_of(const std::optional<NodeRef>& transforms) {
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

  std::shared_ptr<const DcpFiles> finish() {
    return std::make_shared<const DcpFiles>(entries_, std::move(transform_lists_));
  }

 private:
  DcpBudget& budget_;
  LargeVector<DcpFiles::Entry> entries_;
  LargeVector<pickle::Ref> refs_;  // The texts of the names of the files.
  std::uint32_t last_ = 0;
  std::vector<std::vector<std::string>> transform_lists_{{}};
};

struct DcpStorageData::Reading {
  Type metadata_index{kDcpModule, "MetadataIndex"};
  Type storage_info{kDcpModule, "_StorageInfo"};
  Field fqn{"MetadataIndex", "fqn"};
  Field index_offset{"MetadataIndex", "offset"};
  Field relative_path{"_StorageInfo", "relative_path"};
  Field offset{"_StorageInfo", "offset"};
  Field length{"_StorageInfo", "length"};
  Field transforms{"_StorageInfo", "transform_descriptors"};
  FileList files;
};

DcpStorageData::DcpStorageData(const NodePairs& storage_data, const DcpNames& names, std::size_t input_bytes)
    : budget_(input_bytes), places_(names.size()) {
  places_.reserve(storage_data.size());
  infos_.reserve(storage_data.size());
  Reading reading{.files = FileList(budget_)};
  DcpNameFinder finder(names);
  DcpDimsReader dims_reader;
  Dims dims;
  for (std::size_t i = 0; i < storage_data.size(); ++i) {
    const NodePairs index = reading.metadata_index.require(storage_data.key(i));
    const std::optional<std::uint32_t> id = finder.find(reading.fqn.require(index), "fqn");
    const std::optional<NodeRef> offset = reading.index_offset.find(index);
    const bool is_chunk = offset && !offset->is_none();
    if (is_chunk) dims_reader.read(*offset, dims, budget_);
    if (!id) continue;
    const std::uint32_t info = info_of(names[*id].fqn, storage_data.value(i), reading);
    if (is_chunk) {
      budget_.spend(dims.size() * sizeof(std::int64_t));
      places_.add_chunk(*id, dims, info);
    } else {
      places_.add_object(*id, info);
    }
  }
  places_.sort();
  files_ = reading.files.finish();
}

// Infos are read in the order of the pickle. Reading each when its chunk asks for it would wait for memory
// every time.
std::uint32_t DcpStorageData::info_of(std::string_view fqn, NodeRef info, Reading& reading) {
  return with_context("", fqn, [&] {
    const NodePairs found = reading.storage_info.require(info);
    budget_.spend(sizeof(Info));
    const std::uint32_t transforms = reading.files.transforms_of(reading.transforms.find(found));
    infos_.push_back({pickle::require_size(reading.offset.require(found), "offset"),
                      pickle::require_size(reading.length.require(found), "length"),
                      reading.files.file_of(reading.relative_path.require(found), transforms)});
    return static_cast<std::uint32_t>(infos_.size() - 1);
  });
}

std::optional<DcpRange> DcpStorageData::find_object(std::size_t id) const {
  const std::optional<std::uint32_t> place = places_.find_object(id);
  if (!place) return std::nullopt;
  return range_of(*place);
}

}  // namespace accel::ckpt
