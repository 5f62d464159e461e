#include "ckpt/zip/index.hpp"

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/zip/format.hpp"

namespace accel::ckpt {
namespace {

constexpr std::uint64_t kProbeBytes = 4096;
constexpr std::uint64_t kSmallBytes = 4 * kProbeBytes;  // An archive of at most this size is read at once.
constexpr std::uint16_t kEncrypted = 0x0001;
constexpr std::uint64_t kMostInflation = 1100;
constexpr std::uint64_t kDirectoryAttribute = 0x10;  // Readers that honour it find the record empty.

struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
};

// Where the end record begins. A comment of up to 65535 bytes may follow it.
std::optional<std::uint64_t> find_end(const FileWindow& window, std::uint64_t search_bytes) {
  const std::uint64_t searched = std::min(window.size(), search_bytes);
  const std::vector<std::byte> tail = window.read(window.size() - searched, searched);
  for (std::uint64_t back = zip::kEndBytes; back <= searched; ++back) {
    const std::uint64_t at = searched - back;
    if (get_uint(tail, at, 4) == zip::kEnd && get_uint(tail, at + 20, 2) == back - zip::kEndBytes) {
      return window.size() - back;
    }
  }
  return std::nullopt;
}

Directory read_zip64_end(const FileWindow& window, std::uint64_t end_at, Directory directory) {
  if (end_at < zip::kZip64LocatorBytes) return directory;
  const auto locator = window.read(end_at - zip::kZip64LocatorBytes, zip::kZip64LocatorBytes);
  if (get_uint(locator, 0, 4) != zip::kZip64Locator) return directory;
  const std::uint64_t at = get_uint(locator, 8, 8);
  const auto end64 = window.read(at, zip::kZip64EndBytes);
  if (get_uint(end64, 0, 4) != zip::kZip64End)
    throw_corrupt("the zip64 end record is not where the archive says");
  return {get_uint(end64, 48, 8), get_uint(end64, 40, 8), get_uint(end64, 32, 8)};
}

Directory find_directory(const FileWindow& window) {
  if (window.size() < zip::kEndBytes) throw_corrupt("too short for a zip archive");
  std::optional<std::uint64_t> end_at = find_end(window, kProbeBytes);
  if (!end_at) end_at = find_end(window, zip::kEndBytes + zip::kMax16);
  if (!end_at) {
    throw Error(ErrorKind::kCorrupt, "the end record of the zip archive is missing")
        .hint("the file may be truncated");
  }
  const auto end = window.read(*end_at, zip::kEndBytes);
  const Directory small{get_uint(end, 16, 4), get_uint(end, 12, 4), get_uint(end, 10, 2)};
  if (get_uint(end, 4, 2) != 0 && get_uint(end, 4, 2) != zip::kMax16)
    throw_corrupt("the archive is split over several files");
  const Directory directory = read_zip64_end(window, *end_at, small);
  if (checked_add(directory.offset, directory.bytes) > *end_at)
    throw_corrupt("the directory reaches beyond the archive");
  if (directory.entries > directory.bytes / zip::kDirectoryHeaderBytes) {
    throw_corrupt(
        fmt::format("a directory of {} bytes cannot hold {} records", directory.bytes, directory.entries));
  }
  return directory;
}

// Replaces the sizes and the offset that did not fit 32 bits.
void apply_zip64(std::span<const std::byte> extra, ZipEntry& entry) {
  std::size_t at = 0;
  while (at + 4 <= extra.size()) {
    const std::uint64_t id = get_uint(extra, at, 2);
    const std::uint64_t bytes = get_uint(extra, at + 2, 2);
    at += 4;
    if (bytes > extra.size() - at)
      throw_corrupt(fmt::format("record '{}' has a broken extra field", entry.name));
    if (id == zip::kZip64Extra) {
      std::size_t field = at;
      for (std::uint64_t* value : {&entry.size, &entry.stored_size, &entry.header_offset}) {
        if (*value != zip::kMax32) continue;
        if (field + 8 > at + bytes)
          throw_corrupt(fmt::format("record '{}' has a short zip64 field", entry.name));
        *value = get_uint(extra, field, 8);
        field += 8;
      }
    }
    at += bytes;
  }
}

}  // namespace

FileWindow::FileWindow(const File& file, std::uint64_t offset, std::uint64_t length)
    : file_(&file), offset_(offset), length_(length) {
  const std::uint64_t end = checked_add(offset, length);
  try {
    fill_blocks();  // It reads the last bytes, so it fails for a truncated file.
  } catch (const Error&) {
    const std::uint64_t file_bytes = file.size();
    if (end <= file_bytes) throw;
    throw Error(ErrorKind::kCorrupt, fmt::format("'{}' has {} bytes, but bytes {} to {} are needed",
                                                 file.path().string(), file_bytes, offset, end))
        .hint("the file may be truncated");
  }
}

FileWindow::FileWindow(ByteSource& source) : source_(&source), length_(source.size()) { fill_blocks(); }

void FileWindow::fill_blocks() {
  head_.resize(length_ <= kSmallBytes ? length_ : kProbeBytes);
  fetch(0, head_);
  tail_.resize(std::min(length_ - head_.size(), kProbeBytes));
  fetch(length_ - tail_.size(), tail_);
}

void FileWindow::fetch(std::uint64_t at, std::span<std::byte> out) const {
  if (file_ != nullptr) {
    file_->read_at(offset_ + at, out);
  } else {
    source_->read_at(at, out);
  }
}

std::vector<std::byte> FileWindow::read(std::uint64_t at, std::uint64_t count) const {
  const std::uint64_t end = checked_add(at, count);
  if (end > length_)
    throw_corrupt(fmt::format("bytes {} to {} are needed of an archive of {}", at, end, length_));
  std::vector<std::byte> bytes(count);
  if (count == 0) return bytes;
  const std::uint64_t tail_at = length_ - tail_.size();
  if (end <= head_.size()) {
    std::memcpy(bytes.data(), head_.data() + at, count);
  } else if (at >= tail_at) {
    std::memcpy(bytes.data(), tail_.data() + (at - tail_at), count);
  } else {
    fetch(at, bytes);
  }
  return bytes;
}

ZipIndex::ZipIndex(const FileWindow& window) {
  const Directory directory = find_directory(window);
  check_metadata_bytes("the archive's directory",
                       2 * directory.bytes + directory.entries * (sizeof(ZipEntry) + sizeof(std::size_t)));
  const std::vector<std::byte> bytes = window.read(directory.offset, directory.bytes);
  const std::span<const std::byte> all(bytes);
  entries_.reserve(directory.entries);
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    check_interrupted();
    if (bytes.size() - at < zip::kDirectoryHeaderBytes || get_uint(bytes, at, 4) != zip::kDirectoryHeader) {
      throw_corrupt(fmt::format("record {} of the directory is broken", i));
    }
    const std::uint64_t name_bytes = get_uint(bytes, at + 28, 2);
    const std::uint64_t extra_bytes = get_uint(bytes, at + 30, 2);
    const std::uint64_t comment_bytes = get_uint(bytes, at + 32, 2);
    const std::uint64_t begin = at + zip::kDirectoryHeaderBytes;
    if (name_bytes + extra_bytes + comment_bytes > bytes.size() - begin) {
      throw_corrupt(fmt::format("record {} of the directory reaches beyond its end", i));
    }
    ZipEntry entry;
    entry.name.assign(reinterpret_cast<const char*>(bytes.data()) + begin, name_bytes);
    entry.method = static_cast<std::uint16_t>(get_uint(bytes, at + 10, 2));
    entry.crc32 = static_cast<std::uint32_t>(get_uint(bytes, at + 16, 4));
    entry.stored_size = get_uint(bytes, at + 20, 4);
    entry.size = get_uint(bytes, at + 24, 4);
    entry.header_offset = get_uint(bytes, at + 42, 4);
    apply_zip64(all.subspan(begin + name_bytes, extra_bytes), entry);
    if (get_uint(bytes, at + 34, 2) != 0) throw_corrupt("the archive is split over several files");
    const std::uint64_t flags = get_uint(bytes, at + 8, 2);
    if ((flags & kEncrypted) != 0) throw_corrupt(fmt::format("record '{}' is encrypted", entry.name));
    if ((flags & ~zip::kKnownFlags) != 0)
      throw_corrupt(fmt::format("record '{}' has flags {:#x}", entry.name, flags));
    if ((get_uint(bytes, at + 38, 4) & kDirectoryAttribute) != 0 && !entry.name.ends_with('/')) {
      throw_corrupt(fmt::format("record '{}' is marked as a directory", entry.name));
    }
    // A record must end before the directory begins, so that data_offset_of cannot be led beyond it.
    const std::uint64_t least = checked_add<std::uint64_t>(zip::kLocalHeaderBytes, entry.stored_size);
    if (checked_add(entry.header_offset, least) > directory.offset) {
      throw_corrupt(fmt::format("record '{}' reaches into the directory", entry.name));
    }
    entries_.push_back(std::move(entry));
    at = begin + name_bytes + extra_bytes + comment_bytes;
  }
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  const auto name_of = [&](std::size_t i) -> const std::string& { return entries_[i].name; };
  std::sort(by_name_.begin(), by_name_.end(), [&](std::size_t a, std::size_t b) {
    check_interrupted();
    return name_of(a) < name_of(b);
  });
  const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(), [&](std::size_t a, std::size_t b) {
    return name_of(a) == name_of(b);
  });
  if (twice != by_name_.end()) throw_corrupt(fmt::format("record '{}' comes twice", name_of(*twice)));
  for (const ZipEntry& entry : entries_) {
    check_interrupted();
    const std::string root = entry.name.substr(0, entry.name.find('/'));
    if (&entry == &entries_.front()) root_ = root;
    if (root != root_) root_.clear();
  }
}

const ZipEntry* ZipIndex::find(std::string_view name) const {
  const std::string full = fmt::format("{}/{}", root_, name);
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), full,
                       [&](std::size_t i, const std::string& wanted) { return entries_[i].name < wanted; });
  return found != by_name_.end() && entries_[*found].name == full ? &entries_[*found] : nullptr;
}

bool looks_like_zip(const FileWindow& window) {
  return window.size() >= 4 && get_uint(window.read(0, 4), 0, 4) == zip::kLocalHeader;
}

namespace {

std::uint64_t stored_offset_of(const FileWindow& window, const ZipEntry& entry) {
  const auto header = window.read(entry.header_offset, zip::kLocalHeaderBytes);
  if (get_uint(header, 0, 4) != zip::kLocalHeader)
    throw_corrupt(fmt::format("record '{}' has no local header", entry.name));
  const std::uint64_t data =
      entry.header_offset + zip::kLocalHeaderBytes + get_uint(header, 26, 2) + get_uint(header, 28, 2);
  if (checked_add(data, entry.stored_size) > window.size()) {
    throw_corrupt(fmt::format("record '{}' reaches beyond the archive", entry.name));
  }
  return data;
}

}  // namespace

std::vector<std::byte> inflate(std::span<const std::byte> packed, const ZipEntry& entry) {
  // Deflate makes nothing more than about a thousand times smaller.
  if (entry.size / kMostInflation > packed.size())
    throw_corrupt(
        fmt::format("record '{}' has {} bytes packed in {}", entry.name, entry.size, packed.size()));
  struct Free {
    void operator()(libdeflate_decompressor* d) const { libdeflate_free_decompressor(d); }
  };
  const std::unique_ptr<libdeflate_decompressor, Free> decompressor(libdeflate_alloc_decompressor());
  if (!decompressor) throw std::bad_alloc();
  std::vector<std::byte> data(entry.size);
  // libdeflate gets no place for the size: then any other number of bytes is an error.
  const auto result = libdeflate_deflate_decompress(decompressor.get(), packed.data(), packed.size(),
                                                    data.data(), data.size(), nullptr);
  if (result != LIBDEFLATE_SUCCESS) throw_corrupt(fmt::format("record '{}' cannot be unpacked", entry.name));
  return data;
}

std::uint64_t data_offset_of(const FileWindow& window, const ZipEntry& entry) {
  if (entry.method != 0 || entry.size != entry.stored_size) {
    throw_corrupt(fmt::format("record '{}' is compressed; torch stores its data as it is", entry.name));
  }
  return stored_offset_of(window, entry);
}

std::vector<std::byte> read_record(const FileWindow& window, const ZipEntry& entry,
                                   std::uint64_t limit_bytes) {
  check_metadata_bytes(fmt::format("record '{}'", entry.name), entry.size);
  if (entry.size > limit_bytes) {
    throw_corrupt(fmt::format("record '{}' has {} bytes, at most {} are expected", entry.name, entry.size,
                              limit_bytes));
  }
  std::vector<std::byte> data;
  if (entry.method == zip::kDeflated) {
    data = inflate(window.read(stored_offset_of(window, entry), entry.stored_size), entry);
  } else {
    data = window.read(data_offset_of(window, entry), entry.size);
  }
  const std::uint32_t crc = crc32(data);
  if (crc != entry.crc32) {
    throw_corrupt(
        fmt::format("record '{}' has CRC {:08x}, the archive says {:08x}", entry.name, crc, entry.crc32));
  }
  return data;
}

std::string read_text_record(const FileWindow& window, const ZipEntry& entry, std::uint64_t limit_bytes) {
  return std::string(text_of(read_record(window, entry, limit_bytes)));
}

void check_crc(const FileWindow& window, const ZipEntry& entry) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  const std::uint64_t begin = data_offset_of(window, entry);
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < entry.size; at += kPiece)
    crc = crc32(window.read(begin + at, std::min(kPiece, entry.size - at)), crc);
  if (crc != entry.crc32)
    throw Error(ErrorKind::kCorrupt, fmt::format("the CRC of record '{}' is wrong", entry.name));
}

}  // namespace accel::ckpt
