#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.hpp"

namespace accel::ckpt {

/// What a manifest says of a file that was written.
struct FileSummary {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// The CRC-32 of bytes [begin, end) of a file, which are read in blocks.
[[nodiscard]] std::uint32_t crc32_of(const File& file, std::uint64_t begin, std::uint64_t end);

/// A new file that is written from front to back, with the CRC of all its bytes. Bytes are collected in
/// blocks of 4 MiB, which bypass the page cache where that pays (File::set_direct). The destructor removes
/// the file unless finish() was called.
class SummedFile {
 public:
  /// Creates the file. Throws Error if it exists.
  explicit SummedFile(const std::filesystem::path& path);
  SummedFile(const SummedFile&) = delete;
  SummedFile& operator=(const SummedFile&) = delete;
  ~SummedFile();

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);
  /// Appends bytes whose CRC is known.
  void append(std::span<const std::byte> bytes, std::uint32_t crc);
  void append_zeros(std::uint64_t count);

  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Writes what is still in the buffer, syncs the file and closes it.
  FileSummary finish();

 private:
  void flush();

  struct Free {
    void operator()(std::byte* memory) const;
  };

  File file_;
  std::unique_ptr<std::byte, Free> block_;  ///< Bytes that are not written yet.
  std::size_t pending_ = 0;                 ///< The number of bytes in the block.
  std::uint64_t size_ = 0;                  ///< Bytes appended, pending ones included.
  std::uint32_t crc_ = 0;
  bool finished_ = false;
};

}  // namespace accel::ckpt
