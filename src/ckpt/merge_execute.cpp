#include "ckpt/merge_execute.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/copy_range.hpp"
#include "ckpt/strided_copy.hpp"
#include "ckpt/tensor_reader.hpp"

namespace accel::ckpt {
namespace {

// TensorReader's own buffer, the plan, and what a process of this kind needs anyway.
constexpr std::uint64_t kReservedBytes = 12'000'000;
// Smaller tensors are gathered and written together.
constexpr std::uint64_t kGatherBytes = std::uint64_t{1} << 20;

void check_free_space(const std::filesystem::path& directory, std::uint64_t needed) {
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0) return;  // Some file systems do not say.
  const std::uint64_t free_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  if (free_bytes >= needed) return;
  throw Error(ErrorKind::kFailure, fmt::format("'{}' has {} free, but {} are needed", directory.string(),
                                               format_bytes(free_bytes), format_bytes(needed)))
      .hint("free some space, or write elsewhere");
}

class Merger {
 public:
  Merger(const std::filesystem::path& directory, File& out, std::uint64_t buffer_bytes, Progress& progress)
      : reader_(directory),
        out_(out),
        memory_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes)),
        buffer_(memory_.get(), buffer_bytes),
        progress_(progress),
        copier_(out, buffer_, [this](std::uint64_t bytes) { progress_.add(bytes); }) {}

  void merge(const MergeTensor& tensor) {
    if (tensor.bytes >= kGatherBytes && copy_whole(tensor)) return;
    const auto item = static_cast<std::int64_t>(item_bytes(tensor.source.dtype));
    const std::int64_t numel = static_cast<std::int64_t>(tensor.bytes) / item;
    std::int64_t begin = 0;
    while (begin < numel) {
      auto room = static_cast<std::int64_t>(buffer_.size() - gathered_) / item;
      if (room == 0) {
        flush();
        continue;
      }
      const std::int64_t end = std::min(numel, begin + room);
      if (gathered_ == 0) gathered_at_ = tensor.target + static_cast<std::uint64_t>(begin * item);
      const auto bytes = static_cast<std::size_t>((end - begin) * item);
      reader_.read_range(tensor.source, begin, end, buffer_.subspan(gathered_, bytes));
      gathered_ += bytes;
      begin = end;
    }
  }

  void flush() {
    if (gathered_ == 0) return;
    out_.write_at(gathered_at_, buffer_.first(gathered_));
    progress_.add(gathered_);
    gathered_ = 0;
  }

 private:
  // If each piece is one run in its file and one run in the tensor, the kernel can copy it. Otherwise, false.
  bool copy_whole(const MergeTensor& tensor) {
    const std::uint64_t item = item_bytes(tensor.source.dtype);
    const Dims strides = row_major_strides(tensor.source.shape);
    std::vector<StridedCopy> copies;
    for (const Extent& extent : tensor.source.extents) {
      const auto at = static_cast<std::uint64_t>(flat_index(tensor.source.shape, extent.box.offsets)) * item;
      copies.push_back(plan_strided_copy(extent.box.sizes, extent.strides, strides, extent.offset,
                                         tensor.target + at, item));
      if (!copies.back().loops.empty()) return false;
    }
    flush();
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const File& source = reader_.files().open(tensor.source.extents[i].file);
      copier_.copy(source, copies[i].source, copies[i].target, copies[i].run_bytes);
    }
    return true;
  }

  TensorReader reader_;
  File& out_;
  std::unique_ptr<std::byte[]> memory_;  // Not initialised: what is never used takes no memory.
  std::span<std::byte> buffer_;
  std::uint64_t gathered_ = 0;     // Bytes at the front of buffer_ ...
  std::uint64_t gathered_at_ = 0;  // ... that belong here.
  Progress& progress_;
  RangeCopier copier_;
};

}  // namespace

void execute_merge(const MergePlan& plan, const std::filesystem::path& directory,
                   const std::filesystem::path& target, AtomicFile::Existing existing,
                   const MergeLimits& limits, Progress& progress) {
  if (limits.memory_bytes < kLeastMergeMemory) {
    throw Error(ErrorKind::kUsage,
                fmt::format("a merge needs at least {} of memory", format_bytes(kLeastMergeMemory)));
  }
  check_free_space(parent_of(target), plan.total_bytes);
  AtomicFile file(target, existing);
  file.file().reserve(plan.total_bytes);
  file.append(plan.prefix);
  const std::uint64_t buffer_bytes =
      std::min(limits.memory_bytes - kReservedBytes, std::max<std::uint64_t>(plan.total_bytes, 64));
  Merger merger(directory, file.file(), buffer_bytes, progress);
  for (const MergeTensor& tensor : plan.tensors) {
    try {
      merger.merge(tensor);
    } catch (Error& e) {
      e.add_context(fmt::format("tensor '{}'", tensor.source.name));
      throw;
    }
  }
  merger.flush();
  file.commit();
}

}  // namespace accel::ckpt
