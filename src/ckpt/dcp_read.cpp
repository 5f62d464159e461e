#include "ckpt/dcp_read.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "base/text.hpp"
#include "ckpt/dcp/metadata_files.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/io/zstd_source.hpp"
#include "ckpt/tensor/tensor_reader.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {
namespace {

// Whether the range holds a zstd stream; torch has no other transform of its own. Only the major version
// counts: "stream.zstd/1".
bool is_packed(const DcpRange& range) {
  if (range.transforms().empty()) return false;
  const std::string& transform = range.transforms().front();
  const bool known = transform == "stream.zstd/1" || transform.starts_with("stream.zstd/1.");
  if (range.transforms().size() > 1 || !known) {
    throw Error(ErrorKind::kFailure, fmt::format("it is transformed with {}; accel only knows stream.zstd/1",
                                                 fmt::join(range.transforms(), ", ")));
  }
  return true;
}

// Calls `read` with the item's archive.
template <class Read>
auto with_archive(const DcpRange& range, FileCache& files, Read read) {
  if (!is_packed(range)) {
    const File& file = files.open(std::string(range.file()));
    return read(TorchFile(FileWindow(file, range.offset, range.length)));
  }
  ZstdSource source(files.open_own(std::string(range.file())), {range.offset, range.length});
  return read(TorchFile(FileWindow(source)));
}

// Where the chunk's elements are, after its archive has been checked against what the metadata says.
Extent locate_chunk(const DcpTensor& tensor, const DcpChunk& chunk, const TorchFile& archive) {
  std::optional<TorchTensor> found = torch_tensor_of(archive.read_pickle());
  if (!found) throw Error(ErrorKind::kCorrupt, "its archive does not hold a tensor");
  if (found->dtype != tensor.dtype || !std::ranges::equal(found->shape, chunk.box.sizes)) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("its archive holds {} {}, the metadata says {} {}", torch_name(found->dtype),
                            to_string(found->shape), torch_name(tensor.dtype), to_string(chunk.box.sizes)));
  }
  const std::uint64_t at = archive.offset_of(*found);
  Extent extent{std::string(chunk.where.file()), at, chunk.box.copy(), std::move(found->strides)};
  if (is_packed(chunk.where)) {
    extent.packed = PackedRange{chunk.where.offset, chunk.where.length};
  } else {
    extent.offset = checked_add(extent.offset, chunk.where.offset);
  }
  return extent;
}

template <class T>
const T* find_by_fqn(const std::vector<T>& sorted, std::string_view fqn) {
  const auto found = std::lower_bound(sorted.begin(), sorted.end(), fqn,
                                      [](const T& entry, std::string_view name) { return entry.fqn < name; });
  return found != sorted.end() && found->fqn == fqn ? &*found : nullptr;
}

}  // namespace

struct DcpReader::State {
  explicit State(const std::filesystem::path& directory)
      : metadata(read_dcp_metadata(directory)), reader(directory) {}

  void check_chunks(const DcpTensor& tensor) {
    {
      const std::lock_guard lock(mutex);
      if (!checked.insert(&tensor).second) return;
    }
    check_disjoint(tensor.chunks.boxes());
  }

  // The chunks that have elements in `part`.
  StoredTensor locate(const DcpTensor& tensor, const Box& part, FileCache& files) {
    StoredTensor stored{tensor.fqn, tensor.dtype, tensor.shape, {}};
    try {
      check_chunks(tensor);
      for (const DcpChunk chunk : tensor.chunks) {
        if (chunk.box.numel() == 0 || !overlap(chunk.box, part)) continue;
        stored.extents.push_back(open_chunk(tensor, chunk, files));
      }
    } catch (Error& e) {
      e.add_context(fmt::format("tensor '{}'", tensor.fqn));
      throw;
    }
    return stored;
  }

  static Extent open_chunk(const DcpTensor& tensor, const DcpChunk& chunk, FileCache& files) {
    try {
      return with_archive(chunk.where, files,
                          [&](const TorchFile& archive) { return locate_chunk(tensor, chunk, archive); });
    } catch (Error& e) {
      e.add_context(fmt::format("chunk {} at byte {} of {}", to_string(chunk.box), chunk.where.offset,
                                chunk.where.file()));
      throw;
    }
  }

  DcpMetadata metadata;
  TensorReader reader;
  std::mutex mutex;                    // Guards the next.
  std::set<const DcpTensor*> checked;  // Their chunks do not overlap.
};

DcpReader::DcpReader(const std::filesystem::path& directory) : state_(std::make_unique<State>(directory)) {}
DcpReader::DcpReader(DcpReader&&) noexcept = default;
DcpReader& DcpReader::operator=(DcpReader&&) noexcept = default;
DcpReader::~DcpReader() = default;

const std::filesystem::path& DcpReader::directory() const { return state_->reader.files().directory(); }
const DcpMetadata& DcpReader::metadata() const { return state_->metadata; }

const DcpTensor* DcpReader::find_tensor(std::string_view fqn) const {
  return find_by_fqn(state_->metadata.tensors, fqn);
}

const DcpObject* DcpReader::find_object(std::string_view fqn) const {
  return find_by_fqn(state_->metadata.objects, fqn);
}

const DcpTensor& DcpReader::tensor(std::string_view fqn) const {
  if (const DcpTensor* found = find_tensor(fqn)) return *found;
  std::vector<std::string> names;
  for (const DcpTensor& tensor : state_->metadata.tensors) names.push_back(tensor.fqn);
  Error error(ErrorKind::kMissing, fmt::format("'{}' has no tensor '{}'", directory().string(), fqn));
  if (const auto near = nearest(fqn, names)) throw std::move(error).hint(fmt::format("it has '{}'", *near));
  throw error;
}

StoredTensor DcpReader::locate(const DcpTensor& tensor) { return locate(tensor, state_->reader.files()); }

StoredTensor DcpReader::locate(const DcpTensor& tensor, FileCache& files) const {
  StoredTensor stored = state_->locate(tensor, Box::whole(tensor.shape), files);
  try {
    for (const DcpChunk copy : tensor.copies) stored.copies.push_back(State::open_chunk(tensor, copy, files));
  } catch (Error& e) {
    e.add_context(fmt::format("tensor '{}'", tensor.fqn));
    throw;
  }
  return stored;
}

void DcpReader::read_range(const DcpTensor& tensor, std::int64_t elem_begin, std::int64_t elem_end,
                           std::span<std::byte> out) {
  // Only the chunks in the range are opened: a rank of many reads a few of many.
  StoredTensor needed{tensor.fqn, tensor.dtype, tensor.shape, {}};
  for (const Box& box : boxes_of_range(tensor.shape, elem_begin, elem_end)) {
    for (Extent& extent : state_->locate(tensor, box, state_->reader.files()).extents) {
      const bool known = std::any_of(needed.extents.begin(), needed.extents.end(),
                                     [&](const Extent& other) { return other.box == extent.box; });
      if (!known) needed.extents.push_back(std::move(extent));
    }
  }
  state_->reader.read_range(needed, elem_begin, elem_end, out);
}

pickle::Value DcpReader::read_object(const DcpObject& object) {
  try {
    return with_archive(object.where, state_->reader.files(),
                        [](const TorchFile& archive) { return archive.read_pickle(); });
  } catch (Error& e) {
    e.add_context(fmt::format("object '{}'", object.fqn));
    throw;
  }
}

}  // namespace accel::ckpt
