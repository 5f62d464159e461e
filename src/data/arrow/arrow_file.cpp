#include "data/arrow/arrow_file.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/io/endian.hpp"
#include "data/files/integers.hpp"

namespace accel {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kFileMagic = "ARROW1"sv;
constexpr std::size_t kMagicBytes = 8;  // The magic and two bytes of padding.
constexpr std::size_t kPrefixBytes = 8;
/// A chunk takes this much memory with its lists, as the allocator has them.
constexpr std::size_t kChunkBytes = sizeof(ArrowChunk) + 64;
constexpr std::uint64_t kContinuation = 0xffffffff;
constexpr std::int16_t kOldestVersion = 3;                 // V4, of Arrow 0.8.
constexpr std::int64_t kMostRows = std::int64_t{1} << 40;  // A batch may have so many: sums cannot overflow.

// Codes of the union MessageHeader in Message.fbs.
constexpr unsigned kSchema = 1;
constexpr unsigned kRecordBatch = 3;

[[noreturn]] void refuse_arrow(std::string message) { throw Error(ErrorKind::kUsage, std::move(message)); }

[[noreturn]] void refuse_truncated(std::string message) {
  throw Error(ErrorKind::kUsage, std::move(message))
      .hint("the file may be truncated: save the dataset again with save_to_disk");
}

/// Reads the description of one record batch.
class BatchReader {
 public:
  BatchReader(const FlatTable& batch, std::uint64_t body_at, std::uint64_t body_bytes)
      : batch_(batch),
        nodes_(batch.vector(1, kStructBytes)),
        buffers_(batch.vector(2, kStructBytes)),
        views_(batch.vector(4, sizeof(std::int64_t))),
        body_at_(body_at),
        body_bytes_(body_bytes) {}

  ArrowBatch read(const std::vector<ArrowColumn>& columns) {
    require_uncompressed();
    ArrowBatch batch;
    batch.rows = batch_.number<std::int64_t>(0, 0);
    if (batch.rows < 0 || batch.rows > kMostRows) refuse_arrow(fmt::format("says {} rows", batch.rows));
    batch.chunks.resize(columns.size());
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const ArrowColumn& column = columns[i];
      try {
        if (column.obstacle.empty()) batch.chunks[i] = chunk_of(column, batch.rows);
      } catch (Error& error) {
        error.add_context(fmt::format("column '{}'", column.name));
        throw;
      }
      node_ += column.nodes;
      buffer_ += column.buffers + buffers_of_views(column.views);
    }
    if (node_ != nodes_.size || buffer_ != buffers_.size) {
      refuse_arrow(fmt::format("has {} nodes and {} buffers, but its columns have {} and {}", nodes_.size,
                               buffers_.size, node_, buffer_));
    }
    return batch;
  }

 private:
  static constexpr std::size_t kStructBytes = 16;  // A node, or a buffer, is two integers of 8 bytes.

  void require_uncompressed() const {
    const auto compression = batch_.table(3);
    if (!compression) return;
    throw Error(ErrorKind::kUsage, fmt::format("is compressed with {}",
                                               compression->number<std::int8_t>(0, 0) == 0 ? "lz4" : "zstd"))
        .hint("write it without compression, as save_to_disk of the package datasets does");
  }

  std::uint64_t buffers_of_views(std::size_t views) {
    std::uint64_t buffers = 0;
    for (std::size_t i = 0; i < views; ++i) {
      const std::int64_t its = batch_.int64_of(views_, view_++, sizeof(std::int64_t), 0);
      if (its < 0 || static_cast<std::uint64_t>(its) > buffers_.size)
        refuse_arrow("has damaged numbers of buffers");
      buffers += static_cast<std::uint64_t>(its);
    }
    return buffers;
  }

  ArrowChunk chunk_of(const ArrowColumn& column, std::int64_t rows) const {
    ArrowChunk chunk;
    std::uint64_t buffer = buffer_;
    for (std::size_t level = 0; level <= column.lists.size(); ++level) {
      const std::int64_t count = batch_.int64_of(nodes_, node_ + level, kStructBytes, 0);
      if (count < 0 || (level == 0 && count != rows))
        refuse_arrow(fmt::format("it has {} values, but the batch has {} rows", count, rows));
      chunk.counts.push_back(count);
      chunk.has_nulls |= batch_.int64_of(nodes_, node_ + level, kStructBytes, 8) != 0;
      ++buffer;  // The first buffer of a level says which values are null.
      if (level == column.lists.size()) break;
      const ArrowList& list = column.lists[level];
      chunk.offsets_at.push_back(
          list.offset_bytes == 0 || count == 0
              ? 0
              : place_of(buffer, static_cast<std::uint64_t>(count) + 1, list.offset_bytes));
      if (list.offset_bytes != 0) ++buffer;
    }
    for (std::size_t level = 0; level < column.lists.size(); ++level) {
      const std::int64_t items = column.lists[level].items;
      if (column.lists[level].offset_bytes != 0) continue;
      if (chunk.counts[level] > chunk.counts[level + 1] / items)
        refuse_arrow(fmt::format("it has {} lists of {} items, but {} items", chunk.counts[level], items,
                                 chunk.counts[level + 1]));
    }
    chunk.values_at =
        place_of(buffer, static_cast<std::uint64_t>(chunk.counts.back()), ckpt::item_bytes(column.dtype));
    return chunk;
  }

  /// Where a buffer that has at least `count` items of `item_bytes` bytes begins in the file.
  [[nodiscard]] std::uint64_t place_of(std::uint64_t buffer, std::uint64_t count,
                                       std::size_t item_bytes) const {
    const std::int64_t offset = batch_.int64_of(buffers_, buffer, kStructBytes, 0);
    const std::int64_t bytes = batch_.int64_of(buffers_, buffer, kStructBytes, 8);
    const bool is_inside =
        offset >= 0 && bytes >= 0 && static_cast<std::uint64_t>(offset) <= body_bytes_ &&
        static_cast<std::uint64_t>(bytes) <= body_bytes_ - static_cast<std::uint64_t>(offset);
    if (!is_inside || count > static_cast<std::uint64_t>(bytes) / item_bytes) {
      refuse_arrow(fmt::format(
          "a buffer of {} bytes from byte {} on should hold {} items of {} bytes, in a batch of {} bytes",
          bytes, offset, count, item_bytes, body_bytes_));
    }
    return body_at_ + static_cast<std::uint64_t>(offset);
  }

  const FlatTable& batch_;
  FlatVector nodes_;
  FlatVector buffers_;
  FlatVector views_;
  std::uint64_t body_at_;
  std::uint64_t body_bytes_;
  std::uint64_t node_ = 0;    ///< The first node of the present column.
  std::uint64_t buffer_ = 0;  ///< Its first buffer.
  std::uint64_t view_ = 0;    ///< Its first number of buffers.
};

/// Walks over the messages of a file.
class LayoutReader {
 public:
  explicit LayoutReader(const DataFile& file) : file_(file) {}

  ArrowLayout read() {
    const bool has_footer = begins_with_magic();
    at_ = has_footer ? kMagicBytes : 0;
    while (read_message()) continue;
    if (layout_.columns.empty()) refuse_arrow("it has no schema");
    if (has_footer) {
      require_footer();
    } else if (at_ != file_.size()) {
      refuse_arrow(fmt::format("{} bytes follow the end of its stream", file_.size() - at_));
    }
    return std::move(layout_);
  }

 private:
  [[nodiscard]] std::vector<std::byte> bytes_at(std::uint64_t at, std::uint64_t count) const {
    std::vector<std::byte> bytes(count);
    file_.read(at, bytes);
    return bytes;
  }

  [[nodiscard]] bool begins_with_magic() const {
    if (file_.size() < kPrefixBytes) refuse_arrow("it is not an Arrow file: it has less than 8 bytes");
    return ckpt::text_of(bytes_at(0, kMagicBytes)).starts_with(kFileMagic);
  }

  /// The footer repeats what the messages say. Its end shows that the file is whole.
  void require_footer() const {
    if (file_.size() - at_ < kFileMagic.size() ||
        ckpt::text_of(bytes_at(file_.size() - kFileMagic.size(), kFileMagic.size())) != kFileMagic)
      refuse_truncated("it begins with 'ARROW1', but does not end with it");
  }

  /// Reads the message at at_, and returns whether there was one, and not the end of the stream.
  bool read_message() {
    if (file_.size() - at_ < kPrefixBytes)
      refuse_truncated(fmt::format("it ends at byte {} without the end of its stream", file_.size()));
    const std::vector<std::byte> prefix = bytes_at(at_, kPrefixBytes);
    if (ckpt::get_uint(prefix, 0, 4) != kContinuation) {
      refuse_arrow(at_ == 0 ? "it is not an Arrow file: its first bytes are not those of a message"
                            : fmt::format("at byte {} a message should begin", at_));
    }
    const std::uint64_t described = ckpt::get_uint(prefix, 4, 4);
    at_ += kPrefixBytes;
    if (described == 0) return false;
    if (described > file_.size() - at_) {
      refuse_truncated(
          fmt::format("a message has a description of {} bytes from byte {} on, but the file has {}",
                      described, at_, file_.size()));
    }
    described_ += described + layout_.columns.size() * kChunkBytes;
    check_metadata_bytes("the descriptions of its record batches", described_);
    const std::vector<std::byte> bytes = bytes_at(at_, described);
    at_ += described;
    const FlatTable message = FlatTable::root_of(bytes);
    const auto body = static_cast<std::uint64_t>(message.number<std::int64_t>(3, 0));
    if (body > file_.size() - at_) {
      refuse_truncated(fmt::format("a message has {} bytes from byte {} on, but the file has {}", body, at_,
                                   file_.size()));
    }
    if (const auto version = message.number<std::int16_t>(0, 0); version < kOldestVersion)
      refuse_arrow(
          fmt::format("it is of version {} of the format, and V4 and V5 are supported", version + 1));
    read_header(message, body);
    at_ += body;
    return true;
  }

  void read_header(const FlatTable& message, std::uint64_t body) {
    const unsigned code = message.number<std::uint8_t>(1, 0);
    const auto header = message.table(2);
    if (!header) refuse_arrow("a message has no header");
    if ((code == kSchema) != layout_.columns.empty()) {
      refuse_arrow(code == kSchema ? "it has two schemas" : "its first message is not a schema");
    }
    if (code == kSchema) {
      layout_.columns = arrow_columns(*header);
    } else if (code == kRecordBatch) {
      try {
        ArrowBatch batch = BatchReader(*header, at_, body).read(layout_.columns);
        if (batch.rows > 0) layout_.batches.push_back(std::move(batch));
      } catch (Error& error) {
        error.add_context(fmt::format("record batch {}", batches_));
        throw;
      }
      ++batches_;
    }
  }

  const DataFile& file_;
  ArrowLayout layout_;
  std::uint64_t at_ = 0;         ///< Where the next message begins.
  std::uint64_t described_ = 0;  ///< The bytes of all descriptions so far, and of what is kept of them.
  std::int64_t batches_ = 0;
};

}  // namespace

ArrowLayout read_arrow_layout(const DataFile& file) { return LayoutReader(file).read(); }

std::vector<std::int64_t> read_arrow_offsets(const DataFile& file, const ArrowColumn& column,
                                             const ArrowChunk& chunk, std::size_t level, std::int64_t begin,
                                             std::int64_t count) {
  const ArrowList& list = column.lists[level];
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(count) + 1);
  if (list.offset_bytes == 0) {
    for (std::size_t i = 0; i < offsets.size(); ++i)
      offsets[i] = (begin + static_cast<std::int64_t>(i)) * list.items;
    return offsets;
  }
  std::vector<std::byte> bytes(offsets.size() * list.offset_bytes);
  file.read(chunk.offsets_at[level] + static_cast<std::uint64_t>(begin) * list.offset_bytes, bytes);
  read_integers(bytes.data(), list.offset_bytes, /*is_signed=*/true, offsets);
  std::int64_t last = 0;
  for (const std::int64_t offset : offsets) {
    if (offset < last || offset > chunk.counts[level + 1]) {
      refuse_arrow(fmt::format("column '{}': a list begins at item {} of {}, and the one before at {}",
                               column.name, offset, chunk.counts[level + 1], last));
    }
    last = offset;
  }
  return offsets;
}

}  // namespace accel
