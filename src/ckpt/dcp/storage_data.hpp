#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/dcp/metadata.hpp"
#include "ckpt/dcp/names.hpp"
#include "ckpt/dcp/parts.hpp"
#include "ckpt/dcp/places.hpp"

namespace accel::ckpt {

/// The storage_data of a `.metadata`: the file and the range of every item. It refers neither to the input
/// nor to the document. Several threads must not use one at the same time.
class DcpStorageData {
 public:
  /// Reads the entries whose name is one of `names`. Throws Error (kCorrupt).
  DcpStorageData(const pickle::NodePairs& storage_data, const DcpNames& names, std::size_t input_bytes);

  /// The files that the ranges refer to.
  [[nodiscard]] std::shared_ptr<const DcpFiles> files() const { return files_; }
  [[nodiscard]] std::optional<DcpRange> find_object(std::size_t id) const;
  /// Makes find_chunk search the chunks of that name. Searching in the order of the offsets is fastest.
  void select(std::size_t id) { places_.select(id); }
  [[nodiscard]] std::optional<DcpRange> find_chunk(std::span<const std::int64_t> offset) {
    const std::optional<std::uint32_t> place = places_.find_chunk(offset);
    return place ? std::optional(range_of(*place)) : std::nullopt;
  }

 private:
  struct Info {
    std::uint64_t offset;
    std::uint64_t length;
    std::uint32_t file;
  };
  class FileList;
  struct Reading;

  std::uint32_t info_of(std::string_view fqn, pickle::NodeRef info, Reading& reading);
  [[nodiscard]] DcpRange range_of(std::uint32_t place) const {
    const Info& info = infos_[place];
    return {&(*files_)[info.file], info.offset, info.length};
  }

  DcpBudget budget_;
  DcpPlaces places_;  // The values are indices of infos_.
  LargeVector<Info> infos_;
  std::shared_ptr<const DcpFiles> files_;
};

}  // namespace accel::ckpt
