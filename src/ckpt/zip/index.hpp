#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"
#include "ckpt/io/byte_source.hpp"

namespace accel::ckpt {

/// A record of an archive, as the central directory describes it. The local headers of archives by torch have
/// neither sizes nor CRCs.
struct ZipEntry {
  std::string name;
  std::uint64_t size = 0;
  std::uint64_t stored_size = 0;
  std::uint64_t header_offset = 0;  ///< The offset within the archive.
  std::uint32_t crc32 = 0;
  std::uint16_t method = 0;  ///< 0 for a record that is stored uncompressed.
};

/// Part of a file, or all of a source, which must outlive the window. A block at each end is cached: a small
/// archive lies in them entirely, and the ends of a large one hold most of what is not data.
class FileWindow {
 public:
  FileWindow(const File& file, std::uint64_t offset, std::uint64_t length);
  explicit FileWindow(ByteSource& source);

  [[nodiscard]] std::uint64_t size() const { return length_; }
  /// The bytes [at, at + count) of the window. Throws Error (kCorrupt) beyond its end.
  [[nodiscard]] std::vector<std::byte> read(std::uint64_t at, std::uint64_t count) const;

 private:
  void fill_blocks();
  void fetch(std::uint64_t at, std::span<std::byte> out) const;

  const File* file_ = nullptr;
  ByteSource* source_ = nullptr;  ///< It is set if file_ is not.
  std::uint64_t offset_ = 0;
  std::uint64_t length_ = 0;
  std::vector<std::byte> head_;
  std::vector<std::byte> tail_;
};

/// The records of a zip archive. Throws Error (kCorrupt) if the directory contradicts itself or the archive's
/// size, if a name comes twice, or if the archive is encrypted or split.
class ZipIndex {
 public:
  explicit ZipIndex(const FileWindow& window);

  [[nodiscard]] const std::vector<ZipEntry>& entries() const { return entries_; }
  /// The folder that all names begin with, such as "archive". It is empty if the names differ in it.
  [[nodiscard]] const std::string& root() const { return root_; }
  /// The record `root/name`, or nullptr.
  [[nodiscard]] const ZipEntry* find(std::string_view name) const;

 private:
  std::vector<ZipEntry> entries_;
  std::vector<std::size_t> by_name_;  ///< Indices of entries_, sorted.
  std::string root_;
};

/// Whether the window begins like a zip archive.
[[nodiscard]] bool looks_like_zip(const FileWindow& window);

/// Where a record's data begins in the window, after its local header, which is read. Throws Error (kCorrupt)
/// if the record is compressed, or reaches beyond the directory.
[[nodiscard]] std::uint64_t data_offset_of(const FileWindow& window, const ZipEntry& entry);

/// The content of a deflated record, unpacked. Throws Error (kCorrupt) unless it has entry.size bytes.
[[nodiscard]] std::vector<std::byte> inflate(std::span<const std::byte> packed, const ZipEntry& entry);

/// Reads the data of a stored record in pieces. Throws Error (kCorrupt) if its CRC is wrong.
void check_crc(const FileWindow& window, const ZipEntry& entry);

/// The data of a small record, whose CRC is checked. Deflated records, such as TorchScript's code, are
/// unpacked. Throws Error (kCorrupt) for a record of more than `limit_bytes` or metadata_limit().
[[nodiscard]] std::vector<std::byte> read_record(const FileWindow& window, const ZipEntry& entry,
                                                 std::uint64_t limit_bytes = UINT64_MAX);
[[nodiscard]] std::string read_text_record(const FileWindow& window, const ZipEntry& entry,
                                           std::uint64_t limit_bytes = UINT64_MAX);

}  // namespace accel::ckpt
