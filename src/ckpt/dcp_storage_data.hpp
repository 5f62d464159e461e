#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/dcp_metadata.hpp"
#include "ckpt/dcp_names.hpp"
#include "ckpt/dcp_parts.hpp"
#include "ckpt/dcp_places.hpp"

namespace accel::ckpt {

/// storage_data of a `.metadata`: in which range of which file everything is. It refers to the input, not to
/// the document. One is for one thread.
class DcpStorageData {
 public:
  /// What is in storage_data but not among the names is left out. Throws Error (kCorrupt).
  DcpStorageData(const pickle::NodePairs& storage_data, const DcpNames& names, std::size_t input_bytes);

  [[nodiscard]] std::optional<DcpRange> find_object(std::size_t id);
  /// Makes find_chunk look among the chunks of that name. It is fastest if asked in the order of the offsets.
  void select(std::size_t id) { places_.select(id); }
  /// Where the chunk at this offset is; what it returns is for range_of.
  [[nodiscard]] std::optional<std::uint32_t> find_chunk(std::span<const std::int64_t> offset) {
    return places_.find_chunk(offset);
  }
  [[nodiscard]] DcpRange range_of(std::uint32_t place);

 private:
  struct Info {
    std::uint64_t offset;
    std::uint64_t length;
    std::uint32_t file;
    std::uint32_t transforms;
  };
  struct File {
    std::string_view name;
    pickle::Ref ref;  // Of the text.
  };
  struct Fields;

  std::uint32_t info_of(std::string_view fqn, pickle::NodeRef info, Fields& fields);
  std::uint32_t file_of(pickle::NodeRef path);
  std::uint32_t transforms_of(const std::optional<pickle::NodeRef>& transforms);

  DcpBudget budget_;
  DcpPlaces places_;  // Their values are indices into infos_.
  LargeVector<Info> infos_;
  std::vector<File> files_;
  std::uint32_t last_file_ = 0;
  std::vector<std::vector<std::string>> transform_lists_{{}};
};

}  // namespace accel::ckpt
