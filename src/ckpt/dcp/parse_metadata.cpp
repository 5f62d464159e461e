#include "ckpt/dcp/parse_metadata.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/host/threads.hpp"
#include "ckpt/dcp/entries.hpp"
#include "ckpt/dcp/names.hpp"
#include "ckpt/dcp/parts.hpp"
#include "ckpt/dcp/storage_data.hpp"
#include "ckpt/pickle/document.hpp"

namespace accel::ckpt {
namespace {

using pickle::Field;
using pickle::NodePairs;
using pickle::NodeRef;

// Smaller inputs are read by one thread: a second one would not be worth its start.
constexpr std::size_t kFewBytes = std::size_t{1} << 20;

void place_chunks(DcpTensor& tensor, DcpStorageData& places) {
  DcpChunks& chunks = tensor.chunks;
  const bool is_empty = checked_numel(tensor.shape) == 0;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const BoxView box = chunks.box(i);
    const std::optional<DcpRange> where = places.find_chunk(box.offsets);
    if (!where) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("storage_data has no place for the chunk at {}", to_string(box.offsets)));
    }
    // Several ranks may have an empty shard at one offset. Then storage_data keeps the place of only one of
    // them, or of a chunk with elements there.
    if (!is_empty && box.numel() == 0) continue;
    chunks.set_place(i, *where);
    chunks.copy(i, kept++);
  }
  chunks.truncate(kept);
}

void place_all(DcpEntries& entries, DcpStorageData& places, const DcpNames& names) {
  for (std::size_t i = 0; i < entries.tensors.size(); ++i) {
    const std::uint32_t id = entries.tensor_ids[i];
    places.select(id);
    with_context("", names[id].fqn, [&] { place_chunks(entries.tensors[i], places); });
  }
  for (std::size_t i = 0; i < entries.objects.size(); ++i) {
    const std::uint32_t id = entries.object_ids[i];
    with_context("", names[id].fqn, [&] {
      const std::optional<DcpRange> where = places.find_object(id);
      if (!where) throw Error(ErrorKind::kCorrupt, "storage_data has no place for it");
      entries.objects[i].where = *where;
    });
  }
}

}  // namespace

DcpMetadata parse_dcp_metadata(std::span<const std::byte> bytes) {
  std::optional<pickle::Document> document(bytes);
  pickle::Type metadata_type{kDcpModule, "Metadata"};
  Field state_dict_field{"Metadata", "state_dict_metadata"};
  Field planner_data_field{"Metadata", "planner_data"};
  Field storage_data_field{"Metadata", "storage_data"};
  Field version_field{"Metadata", "version"};

  const NodePairs fields = metadata_type.require(document->root());
  DcpMetadata metadata;
  if (const auto version = version_field.find(fields); version && !version->is_none())
    metadata.version = pickle::require_text(*version, "version");
  const NodePairs state_dict =
      pickle::require_mapping(state_dict_field.require(fields), "state_dict_metadata");
  const NodePairs storage_data = pickle::require_mapping(storage_data_field.require(fields), "storage_data");
  const std::optional<NodeRef> planner_data = planner_data_field.find(fields);
  const DcpNames names(state_dict);

  std::optional<DcpStorageData> places;
  DcpEntries entries;
  const auto read_places = [&] { places.emplace(storage_data, names, bytes.size()); };
  const auto read_entries = [&] {
    entries = read_dcp_entries(state_dict, planner_data, names, bytes.size());
  };
  if (bytes.size() < kFewBytes) {
    read_places();
    read_entries();
  } else {
    run_both(read_places, read_entries);
  }
  document.reset();  // The document takes the most memory, and only its input is still needed.

  place_all(entries, *places, names);
  metadata.files.push_back(places->files());
  metadata.tensors = std::move(entries.tensors);
  metadata.objects = std::move(entries.objects);
  return metadata;
}

}  // namespace accel::ckpt
