#include "ckpt/write/write_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/host/cpus.hpp"
#include "base/host/file_system.hpp"
#include "base/text.hpp"
#include "ckpt/io/copy_range.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/tensor/tensor_reader.hpp"
#include "ckpt/write/update_reader.hpp"
#include "ckpt/write/work_queue.hpp"

namespace accel::ckpt {
namespace {

// Memory for the plan and for the process itself, and memory for the TensorReader of each thread.
constexpr std::uint64_t kReservedBytes = 8'000'000;
constexpr std::uint64_t kReaderBytes = 5'000'000;
// A larger buffer is not faster.
constexpr std::uint64_t kMostBufferBytes = std::uint64_t{24} << 20;
// Pieces of a tensor of at least this size are copied within the kernel, if their runs have at least this
// size on average: each run costs two system calls.
constexpr std::uint64_t kKernelCopyBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kKernelRunBytes = std::uint64_t{64} << 10;
// The most elements that an update is added to at once. They are in memory as float32, as are the rows of a
// factor for them.
constexpr std::int64_t kUpdatedElements = std::int64_t{1} << 18;

// What the threads that write one file share.
struct Job {
  const OutputFile& plan;
  const Checkpoint& source;
  File& out;
  WorkQueue& queue;
  std::vector<std::uint32_t>& crcs;    // The CRCs of the segments that are records of archives.
  const std::vector<bool>& is_record;  // Whether a segment is a record of an archive.
  Progress& progress;
  std::mutex mutex = {};  // Guards progress and failure.
  std::exception_ptr failure = nullptr;

  void add_progress(std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    progress.add(bytes);
  }
};

// Writes the part of one thread.
class Writer {
 public:
  Writer(Job& job, std::uint64_t buffer_bytes)
      : job_(job),
        reader_(job.source.directory()),
        updates_(job.source, reader_),
        memory_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes)),
        buffer_(memory_.get(), buffer_bytes),
        copier_(job.out, buffer_, [&job](std::uint64_t bytes) { job.add_progress(bytes); }) {}

  void run() {
    for (std::vector<WorkItem> batch = job_.queue.take(); !batch.empty(); batch = job_.queue.take()) {
      for (const WorkItem& item : batch) write(item);
      flush();
    }
  }

 private:
  void write(const WorkItem& item) {
    const OutputSegment& segment = job_.plan.segments[item.segment];
    if (const auto* text = std::get_if<std::string>(&segment.content)) {
      write_text(item, *text, segment);
    } else if (const auto* file = std::get_if<FileContent>(&segment.content)) {
      write_file_range(item, *file, segment);
    } else {
      const auto& tensor = std::get<TensorContent>(segment.content);
      try {
        write_tensor(item, tensor, segment);
      } catch (Error& e) {
        const std::string which = fmt::format("tensor '{}'", job_.source.tensors()[tensor.source].name);
        if (!e.message().starts_with(which)) e.add_context(which);  // Some errors name it already.
        throw;
      }
    }
  }

  void write_text(const WorkItem& item, const std::string& text, const OutputSegment& segment) {
    const auto begin = static_cast<std::size_t>(item.begin);
    const auto end = static_cast<std::size_t>(item.end);
    for (std::size_t at = begin; at < end;) {
      const std::span<std::byte> room = room_at(segment.offset + at, 1);
      const std::size_t count = std::min(room.size(), end - at);
      std::memcpy(room.data(), text.data() + at, count);
      take(item, room.first(count));
      at += count;
    }
  }

  void write_file_range(const WorkItem& item, const FileContent& content, const OutputSegment& segment) {
    const File source = File::open_read(content.file);
    auto at = static_cast<std::uint64_t>(item.begin);
    const auto end = static_cast<std::uint64_t>(item.end);
    while (at < end) {
      const std::span<std::byte> room = room_at(segment.offset + at, 1);
      const std::span<std::byte> piece = room.first(std::min<std::uint64_t>(room.size(), end - at));
      source.read_at(checked_add(content.offset, at), piece);
      take(item, piece);
      at += piece.size();
    }
  }

  void write_tensor(const WorkItem& item, const TensorContent& content, const OutputSegment& segment) {
    const StoredTensor& stored = stored_of(item, content);
    const Box whole = Box::whole(stored.shape);
    const std::span<const Box> boxes =
        content.boxes.empty() ? std::span(&whole, 1) : std::span(content.boxes);
    std::int64_t skipped = 0;  // Elements of the boxes before this one.
    for (const Box& box : boxes) {
      const std::int64_t numel = box.numel();
      const std::int64_t begin = std::max<std::int64_t>(item.begin - skipped, 0);
      const std::int64_t end = std::min(item.end - skipped, numel);
      const std::uint64_t target =
          segment.offset + static_cast<std::uint64_t>(skipped) * item_bytes(content.dtype);
      if (begin < end && content.update) {
        write_updated(item, stored, content, box, begin, end, target);
      } else if (begin < end) {
        write_elements(item, stored, content, box, begin, end, target);
      }
      skipped += numel;
    }
  }

  const StoredTensor& stored_of(const WorkItem& item, const TensorContent& content) {
    if (item.stored) return *item.stored;
    if (!located_ || located_index_ != content.source) {
      located_.reset();
      located_ = job_.source.locate(content.source, reader_.files());
      located_index_ = content.source;
    }
    return *located_;
  }

  // Elements [begin, end) of the row-major box, whose first element belongs at `target`.
  void write_elements(const WorkItem& item, const StoredTensor& stored, const TensorContent& content,
                      const Box& box, std::int64_t begin, std::int64_t end, std::uint64_t target) {
    const std::uint64_t from_bytes = item_bytes(stored.dtype);
    const std::uint64_t to_bytes = item_bytes(content.dtype);
    const bool as_it_is = stored.dtype == content.dtype;
    if (as_it_is && !job_.is_record[item.segment] &&
        static_cast<std::uint64_t>(end - begin) * to_bytes >= kKernelCopyBytes &&
        copy_in_kernel(stored, box, begin, end, target)) {
      return;
    }
    const std::uint64_t largest = std::max(from_bytes, to_bytes);
    for (std::int64_t at = begin; at < end;) {
      const std::uint64_t here = target + static_cast<std::uint64_t>(at) * to_bytes;
      const std::span<std::byte> room = room_at(here, as_it_is ? to_bytes : from_bytes + to_bytes);
      const std::uint64_t fits = room.size() / (as_it_is ? largest : from_bytes + to_bytes);
      const std::int64_t next = std::min(end, at + static_cast<std::int64_t>(fits));
      const auto count = static_cast<std::uint64_t>(next - at);
      const std::span<std::byte> out = room.first(count * to_bytes);
      if (as_it_is) {
        reader_.read_box(stored, box, at, next, out);
      } else {
        const std::span<std::byte> in = room.last(count * from_bytes);
        reader_.read_box(stored, box, at, next, in);
        convert_dtype(stored.dtype, in, content.dtype, out);
      }
      take(item, out);
      at = next;
    }
  }

  // The same with an update.
  void write_updated(const WorkItem& item, const StoredTensor& stored, const TensorContent& content,
                     const Box& box, std::int64_t begin, std::int64_t end, std::uint64_t target) {
    const std::uint64_t to_bytes = item_bytes(content.dtype);
    for (std::int64_t at = begin; at < end;) {
      const std::span<std::byte> room = room_at(target + static_cast<std::uint64_t>(at) * to_bytes, to_bytes);
      const auto fits = static_cast<std::int64_t>(room.size() / to_bytes);
      const std::int64_t next = std::min(end, at + std::min(fits, kUpdatedElements));
      const std::span<std::byte> out = room.first(static_cast<std::uint64_t>(next - at) * to_bytes);
      updated_.resize(static_cast<std::size_t>(next - at));
      const std::span<std::byte> floats = std::as_writable_bytes(std::span(updated_));
      read_as(stored, content.dtype, box, at, next, out);
      convert_or_copy(content.dtype, out, DType::kFloat32, floats);
      updates_.add(*content.update, at, updated_);
      convert_or_copy(DType::kFloat32, floats, content.dtype, out);
      convert_or_copy(content.dtype, out, DType::kFloat32, floats);
      if (!std::all_of(updated_.begin(), updated_.end(), [](float value) { return std::isfinite(value); })) {
        throw Error(ErrorKind::kCorrupt,
                    fmt::format("what the adapter adds to '{}' gives numbers that are not finite in {}",
                                stored.name, torch_name(content.dtype)))
            .hint("the training of the adapter, or of the base, has diverged, or the sum is too large");
      }
      take(item, out);
      at = next;
    }
  }

  // Elements [begin, end) of the box in another dtype, if it is another.
  void read_as(const StoredTensor& stored, DType dtype, const Box& box, std::int64_t begin, std::int64_t end,
               std::span<std::byte> out) {
    if (stored.dtype == dtype) return reader_.read_box(stored, box, begin, end, out);
    std::vector<std::byte> in(
        checked_nbytes(end - begin, static_cast<std::int64_t>(item_bytes(stored.dtype))));
    reader_.read_box(stored, box, begin, end, in);
    convert_dtype(stored.dtype, in, dtype, out);
  }

  static void convert_or_copy(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out) {
    if (from != to) return convert_dtype(from, in, to, out);
    std::copy(in.begin(), in.end(), out.begin());
  }

  bool copy_in_kernel(const StoredTensor& stored, const Box& box, std::int64_t begin, std::int64_t end,
                      std::uint64_t target) {
    const std::optional<std::vector<FileRun>> runs = reader_.runs_of(stored, box, begin, end);
    const std::uint64_t bytes = static_cast<std::uint64_t>(end - begin) * item_bytes(stored.dtype);
    if (!runs || bytes < runs->size() * kKernelRunBytes) return false;
    flush();
    const std::uint64_t first = target + static_cast<std::uint64_t>(begin) * item_bytes(stored.dtype);
    for (const FileRun& run : *runs) {
      copier_.copy(reader_.files().open(*run.file), run.offset, first + run.target, run.bytes);
    }
    return true;
  }

  // Returns room in the buffer, at least `least` bytes, for bytes that belong at `at` in the file. The room
  // is behind the gathered bytes if `at` follows them; else these are flushed first.
  std::span<std::byte> room_at(std::uint64_t at, std::uint64_t least) {
    if (gathered_ > 0 && (gathered_at_ + gathered_ != at || buffer_.size() - gathered_ < least)) flush();
    if (gathered_ == 0) gathered_at_ = at;
    return buffer_.subspan(gathered_);
  }

  // Adds `bytes`, which are at the front of what room_at returned, to the gathered bytes.
  void take(const WorkItem& item, std::span<const std::byte> bytes) {
    if (job_.is_record[item.segment]) job_.crcs[item.segment] = crc32(bytes, job_.crcs[item.segment]);
    gathered_ += bytes.size();
  }

  void flush() {
    if (gathered_ == 0) return;
    job_.out.write_at(gathered_at_, buffer_.first(gathered_));
    // Starts the write-back, so that the sync at the end finds little left to do.
    ::sync_file_range(job_.out.fd(), static_cast<off_t>(gathered_at_), static_cast<off_t>(gathered_),
                      SYNC_FILE_RANGE_WRITE);
    job_.add_progress(gathered_);
    gathered_ = 0;
  }

  Job& job_;
  TensorReader reader_;
  UpdateReader updates_;
  std::vector<float> updated_;           // Elements that an update is added to.
  std::unique_ptr<std::byte[]> memory_;  // It is not initialized: pages never used take no memory.
  std::span<std::byte> buffer_;
  std::uint64_t gathered_ = 0;     // The number of gathered bytes, which are at the front of buffer_.
  std::uint64_t gathered_at_ = 0;  // The offset in the file of the gathered bytes.
  RangeCopier copier_;
  std::optional<StoredTensor> located_;  // The last tensor that this thread located.
  std::size_t located_index_ = 0;        // The index in the source of located_.
};

void run_writer(Job& job, std::uint64_t buffer_bytes) {
  try {
    Writer(job, buffer_bytes).run();
  } catch (...) {
    job.queue.close();
    const std::lock_guard lock(job.mutex);
    if (!job.failure) job.failure = std::current_exception();
  }
}

// Writes headers, descriptors and the directory of an archive.
void write_archive(File& out, const OutputArchive& archive, std::span<const std::uint32_t> crcs) {
  const auto put = [&](std::uint64_t at, const std::string& text) {
    out.write_at(archive.offset + at, std::as_bytes(std::span(text)));
  };
  const std::vector<ZipRecord>& records = archive.layout.records();
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::string descriptor = archive.layout.descriptor(i, crcs[i]);
    put(records[i].header_offset, archive.layout.header(i));
    put(records[i].data_offset + records[i].size, descriptor);
    end = records[i].data_offset + records[i].size + descriptor.size();
  }
  put(end, archive.layout.directory(crcs));
}

unsigned threads_of(const WriteLimits& limits) {
  if (limits.threads > 0) return limits.threads;
  return std::clamp(usable_cpus(), 1U, 2U);
}

}  // namespace

void write_file(Checkpoint& source, const OutputFile& plan, File& out, const WriteLimits& limits,
                Progress& progress) {
  const unsigned threads = threads_of(limits);
  if (limits.memory_bytes < kLeastWriteMemory * threads) {
    throw Error(ErrorKind::kUsage, fmt::format("{} of memory is not enough: {} threads need at least {}",
                                               format_bytes(limits.memory_bytes), threads,
                                               format_bytes(kLeastWriteMemory * threads)))
        .hint("allow more memory, or fewer threads");
  }
  out.truncate(plan.bytes);  // Bytes that no segment covers are zeros, even if no space can be reserved.
  out.reserve(plan.bytes);
  std::vector<bool> is_record(plan.segments.size(), false);
  for (const OutputArchive& archive : plan.archives) {
    const auto first = is_record.begin() + static_cast<std::ptrdiff_t>(archive.first_segment);
    std::fill_n(first, archive.layout.records().size(), true);
  }
  std::vector<std::uint32_t> crcs(plan.segments.size(), 0);
  WorkQueue queue(source, plan, is_record);
  Job job{plan, source, out, queue, crcs, is_record, progress};

  // A tenth is left for the memory that malloc keeps.
  const std::uint64_t most = ((limits.memory_bytes - kReservedBytes) / threads - kReaderBytes) / 10 * 9;
  const std::uint64_t buffer_bytes =
      std::min({most, kMostBufferBytes, std::max<std::uint64_t>(plan.bytes, 64)});
  {
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back([&] { run_writer(job, buffer_bytes); });
    run_writer(job, buffer_bytes);
  }
  if (job.failure) std::rethrow_exception(job.failure);
  for (const OutputArchive& archive : plan.archives) {
    write_archive(out, archive,
                  std::span(crcs).subspan(archive.first_segment, archive.layout.records().size()));
  }
}

void check_free_space(const std::filesystem::path& directory, std::uint64_t needed) {
  const std::optional<std::uint64_t> free = free_bytes(directory);
  if (!free || *free >= needed) return;
  throw Error(ErrorKind::kFailure, fmt::format("'{}' has {} free, but {} are needed", directory.string(),
                                               format_bytes(*free), format_bytes(needed)))
      .hint("free some space, or write elsewhere");
}

}  // namespace accel::ckpt
