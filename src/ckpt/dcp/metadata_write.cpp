#include "ckpt/dcp/metadata_write.hpp"

#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/pickle/writer.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::Global;
using pickle::instance;
using pickle::List;
using pickle::None;
using pickle::Tuple;
using pickle::Value;
using pickle::Values;

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kVersion = "1.0.0";

// Where an item is: its plan, and the item there.
struct ItemPlace {
  const DcpRankPlan* plan;
  const PlannedItem* item;
};

struct Entry {
  std::string fqn;
  const StatePath* path = nullptr;
  const TensorChunk* tensor = nullptr;  // It is nullptr for an object.
  std::vector<ItemPlace> places;
};

Value size_of(const Dims& dims) {
  Tuple tuple;
  for (const std::int64_t dim : dims) tuple.items.emplace_back(dim);
  return pickle::reduce(Global("torch", "Size"), {Value(std::move(tuple))});
}

Value fields(std::initializer_list<std::pair<Value, Value>> pairs) { return Dict{pairs}; }

// torch up to 2.14 requires five properties. The sixth of torch 2.15 (strides) is optional.
Value properties_of(DType dtype) {
  Tuple state{{Value(Global("torch", torch_name(dtype))),
               pickle::reduce(Global("torch.serialization", "_get_layout"), {Value("torch.strided")}),
               Value(false), pickle::reduce(Global(kModule, "_MEM_FORMAT_ENCODING"), {Value(0)}),
               Value(false)}};
  return instance(Global(kModule, "TensorProperties"), std::move(state));
}

Value chunk_of(const Box& box) {
  return instance(Global(kModule, "ChunkStorageMetadata"),
                  fields({{"offsets", size_of(box.offsets)}, {"sizes", size_of(box.sizes)}}));
}

Value storage_info_of(const ItemPlace& place) {
  return instance(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                  fields({{"relative_path", place.plan->file},
                          {"offset", static_cast<std::int64_t>(place.item->offset)},
                          {"length", static_cast<std::int64_t>(place.item->length)}}));
}

Value path_of(const StatePath& path) {
  Tuple tuple;
  for (const PathKey& key : path) std::visit([&](const auto& k) { tuple.items.emplace_back(k); }, key);
  return tuple;
}

const TensorChunk* chunk_in(const ItemPlace& place) {
  return std::get_if<TensorChunk>(&place.item->item.content);
}

void check_entry(const Entry& entry) {
  const auto reject = [&](std::string_view why) {
    throw Error(ErrorKind::kFailure, fmt::format("cannot write the metadata of '{}': {}", entry.fqn, why));
  };
  std::vector<BoxView> boxes;
  for (const ItemPlace& place : entry.places) {
    const TensorChunk* chunk = chunk_in(place);
    if ((chunk == nullptr) != (entry.tensor == nullptr))
      reject("it is a tensor on one rank and an object on another");
    if (place.item->item.path != *entry.path) reject("two paths have this name");
    if (chunk == nullptr) continue;
    if (chunk->dtype != entry.tensor->dtype || chunk->shape != entry.tensor->shape) {
      reject("its dtype or shape is not the same on all ranks");
    }
    boxes.emplace_back(chunk->box);
  }
  if (entry.tensor == nullptr) {
    if (entry.places.size() != 1) reject("an object can be written by one rank only");
    return;
  }
  try {
    check_tiling(boxes, entry.tensor->shape);
  } catch (const Error& e) {
    reject(e.message());
  }
}

// Entries are in the order in which the plans first name them: the order of the state dict, as in torch.
std::vector<Entry> gather_entries(std::span<const DcpRankPlan> plans) {
  std::vector<Entry> entries;
  std::map<std::string, std::size_t> known;
  for (const DcpRankPlan& plan : plans) {
    for (const PlannedItem& item : plan.items) {
      const ItemPlace place{&plan, &item};
      std::string fqn = fqn_of(item.item.path);
      const auto [at, is_new] = known.emplace(fqn, entries.size());
      if (is_new) entries.push_back({std::move(fqn), &item.item.path, chunk_in(place), {}});
      entries[at->second].places.push_back(place);
    }
  }
  for (const Entry& entry : entries) check_entry(entry);
  return entries;
}

// Writes a value of state_dict_metadata.
void put_contents(const Entry& entry, pickle::Writer& writer) {
  if (entry.tensor == nullptr) {
    writer.put(instance(Global(kModule, "BytesStorageMetadata"), Dict{}));
    return;
  }
  writer.begin_instance(Global(kModule, "TensorStorageMetadata"));
  writer.begin_dict();
  writer.put("properties");
  writer.put(properties_of(entry.tensor->dtype));
  writer.put("size");
  writer.put(size_of(entry.tensor->shape));
  writer.put("chunks");
  writer.begin_list();
  for (const ItemPlace& place : entry.places) writer.put(chunk_of(chunk_in(place)->box));
  writer.end_list();
  writer.end_dict();
  writer.end_instance();
}

// Writes the entries of storage_data.
void put_places(const Entry& entry, pickle::Writer& writer) {
  std::int64_t chunks = 0;
  for (const ItemPlace& place : entry.places) {
    // (fqn, offset) identifies a chunk; the index is a hint where to look in `chunks`.
    Dict index{{{"fqn", entry.fqn}, {"index", None{}}}};
    if (const TensorChunk* chunk = chunk_in(place)) {
      index.items.back().second = chunks++;
      index.items.emplace_back("offset", size_of(chunk->box.offsets));
    }
    writer.put(instance(Global(kModule, "MetadataIndex"), std::move(index)));
    writer.put(storage_info_of(place));
  }
}

}  // namespace

std::string encode_dcp_metadata(std::span<const DcpRankPlan> plans) {
  // Entries are pickled one by one: the tree of a million chunks would take gigabytes.
  const std::vector<Entry> entries = gather_entries(plans);
  pickle::Writer writer;
  writer.begin_instance(Global(kModule, "Metadata"));
  writer.begin_dict();

  writer.put("state_dict_metadata");
  writer.begin_dict();
  for (const Entry& entry : entries) {
    writer.put(entry.fqn);
    put_contents(entry, writer);
  }
  writer.end_dict();

  writer.put("planner_data");
  writer.begin_dict();
  for (const Entry& entry : entries) {
    writer.put(entry.fqn);
    writer.put(path_of(*entry.path));
  }
  writer.end_dict();

  writer.put("storage_data");
  writer.begin_dict();
  for (const Entry& entry : entries) put_places(entry, writer);
  writer.end_dict();

  writer.put("storage_meta");
  writer.put(instance(
      Global(kModule, "StorageMeta"),
      fields({{"checkpoint_id", None{}}, {"save_id", None{}}, {"load_id", None{}}, {"modules", List{}}})));
  writer.put("version");
  writer.put(kVersion);
  writer.end_dict();
  writer.end_instance();
  return writer.finish();
}

FileSummary write_dcp_metadata(const std::filesystem::path& directory, std::span<const DcpRankPlan> plans) {
  const std::string bytes = encode_dcp_metadata(plans);
  write_file_atomically(directory / ".metadata", bytes);
  return {".metadata", bytes.size(), crc32(std::as_bytes(std::span(bytes)))};
}

}  // namespace accel::ckpt
