#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "ckpt/dcp/metadata_files.hpp"
#include "ckpt/dcp/transform.hpp"
#include "ckpt/io/zstd_source.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {
namespace {

// Calls `read` with the TorchFile of the item.
template <class Read>
auto with_archive(const DcpRange& range, FileCache& files, Read read) {
  if (!is_zstd(range)) {
    const File& file = files.open(std::string(range.file()));
    return read(TorchFile(FileWindow(file, range.offset, range.length)));
  }
  ZstdSource source(files.open_own(std::string(range.file())), {range.offset, range.length});
  return read(TorchFile(FileWindow(source)));
}

// Says where the chunk's elements are, after a check of its archive against the metadata.
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
  if (is_zstd(chunk.where)) {
    extent.packed = PackedRange{chunk.where.offset, chunk.where.length};
  } else {
    extent.offset = checked_add(extent.offset, chunk.where.offset);
  }
  return extent;
}

Extent open_chunk(const DcpTensor& tensor, const DcpChunk& chunk, FileCache& files) {
  const auto which = [&] {
    return fmt::format("chunk {} at byte {} of {}", to_string(chunk.box), chunk.where.offset,
                       chunk.where.file());
  };
  const auto locate = [&](const TorchFile& archive) { return locate_chunk(tensor, chunk, archive); };
  return with_context(which, [&] { return with_archive(chunk.where, files, locate); });
}

void require_known_dtype(const DcpTensor& tensor) {
  if (tensor.dtype != DType::kUnknown) return;
  throw Error(ErrorKind::kFailure,
              fmt::format("it is of the dtype {}, which accel does not know", tensor.unknown_dtype))
      .hint("leave it out with --exclude, or save it as another dtype");
}

std::vector<std::string> files_of_chunks(const DcpChunks& chunks) {
  std::set<std::string_view> names;
  for (const DcpChunk chunk : chunks) names.insert(chunk.where.file());
  return {names.begin(), names.end()};
}

class DcpCheckpoint final : public Checkpoint {
 public:
  explicit DcpCheckpoint(const std::filesystem::path& directory)
      : metadata_(read_dcp_metadata(directory)), object_files_(directory) {
    contents_.kind = Kind::kDcp;
    contents_.path = directory;
    contents_.directory = directory;
    contents_.version = metadata_.version;
    for (const DcpTensor& tensor : metadata_.tensors) tensors_.push_back(&tensor);
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const DcpTensor* a, const DcpTensor* b) { return a->position < b->position; });
    contents_.tensors.reserve(tensors_.size());
    for (const DcpTensor* tensor : tensors_) {
      contents_.tensors.push_back({tensor->fqn, tensor->path, tensor->dtype, tensor->shape,
                                   tensor->chunks.size(), tensor->copies.size()});
    }
    for (const DcpObject& object : metadata_.objects) contents_.objects.push_back({object.fqn, object.path});
  }

  // The metadata alone is read: to open the archive of every chunk costs more than all the rest of a plan.
  void check_coverage(std::size_t tensor) override {
    const DcpTensor& entry = *tensors_.at(tensor);
    const auto which = [&] {
      return fmt::format("tensor '{}' of shape {}", entry.fqn, to_string(entry.shape));
    };
    with_context(which, [&] {
      require_known_dtype(entry);
      check_tiling(entry.chunks.boxes(), entry.shape);
    });
  }

  // The metadata alone is read.
  TensorFiles files_of(std::size_t tensor) override {
    const DcpTensor& entry = *tensors_.at(tensor);
    return {files_of_chunks(entry.chunks), files_of_chunks(entry.copies)};
  }

  // The metadata alone is read.
  std::string place_of(std::size_t tensor) override {
    const DcpChunks& chunks = tensors_.at(tensor)->chunks;
    if (chunks.empty()) return {};
    return fmt::format("{}:{}", chunks.where(0).file(), chunks.where(0).offset);
  }

  bool shares_bytes(std::size_t a, std::size_t b) override {
    const DcpTensor& one = *tensors_.at(a);
    const DcpTensor& other = *tensors_.at(b);
    if (one.dtype != other.dtype || one.shape != other.shape || one.chunks.size() != other.chunks.size())
      return false;
    for (std::size_t i = 0; i < one.chunks.size(); ++i) {
      const DcpChunk chunk = one.chunks[i];
      const DcpChunk twin = other.chunks[i];
      if (!(chunk.box == twin.box) || chunk.where.file() != twin.where.file() ||
          chunk.where.offset != twin.where.offset)
        return false;
    }
    return true;
  }

  // accel's own checkpoints have a manifest. One that cannot be read, or is of other files, says nothing
  // here: `accel verify` reports it.
  std::vector<std::vector<std::size_t>> recorded_ties() const override {
    const std::filesystem::path directory = std::filesystem::canonical(path());
    const std::filesystem::path file = directory.parent_path() / kManifestName;
    if (!std::filesystem::exists(file)) return {};
    try {
      const Manifest manifest = parse_manifest(file);
      if (manifest.files.contains((directory.filename() / ".metadata").string()))
        return groups_of(tensors(), manifest.tied);
    } catch (const Error&) {
      return {};
    }
    return {};
  }

  std::string file_of_object(std::size_t object) const override {
    return std::string(metadata_.objects.at(object).where.file());
  }

  pickle::Value read_object(std::size_t object) override {
    const DcpObject& entry = metadata_.objects.at(object);
    return with_context("object", entry.fqn, [&] {
      return with_archive(entry.where, object_files_,
                          [](const TorchFile& archive) { return archive.read_pickle(); });
    });
  }

 private:
  StoredTensor locate_in(std::size_t index, FileCache& files) const override {
    const DcpTensor& tensor = *tensors_.at(index);
    StoredTensor stored{tensor.fqn, tensor.dtype, tensor.shape, {}};
    with_context("tensor", tensor.fqn, [&] {
      require_known_dtype(tensor);
      check_overlap(tensor);
      for (const DcpChunk chunk : tensor.chunks) {
        if (chunk.box.numel() != 0) stored.extents.push_back(open_chunk(tensor, chunk, files));
      }
      for (const DcpChunk copy : tensor.copies) stored.copies.push_back(open_chunk(tensor, copy, files));
    });
    return stored;
  }

  void check_overlap(const DcpTensor& tensor) const {
    {
      const std::lock_guard lock(mutex_);
      if (checked_.contains(&tensor)) return;
    }
    check_disjoint(tensor.chunks.boxes());
    const std::lock_guard lock(mutex_);
    checked_.insert(&tensor);
  }

  DcpMetadata metadata_;
  std::vector<const DcpTensor*> tensors_;  // The tensors, in the order of contents_.tensors.
  FileCache object_files_;
  mutable std::mutex mutex_;                    // Guards checked_.
  mutable std::set<const DcpTensor*> checked_;  // Tensors whose chunks do not overlap.
};

}  // namespace

std::unique_ptr<Checkpoint> open_dcp(const std::filesystem::path& directory) {
  return std::make_unique<DcpCheckpoint>(directory);
}

}  // namespace accel::ckpt
