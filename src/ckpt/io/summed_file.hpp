#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.hpp"

namespace accel::ckpt {

/// What was written, for a manifest.
struct FileSummary {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// A new file that is written from front to back while its CRC is kept. Small pieces are gathered; large ones
/// go to the kernel from where they are. Without finish() the destructor removes the file.
class SummedFile {
 public:
  /// Creates the file, which must not be there yet.
  explicit SummedFile(const std::filesystem::path& path);
  SummedFile(const SummedFile&) = delete;
  SummedFile& operator=(const SummedFile&) = delete;
  ~SummedFile();

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);
  /// As append, for bytes whose CRC is known already.
  void append(std::span<const std::byte> bytes, std::uint32_t crc);
  void append_zeros(std::uint64_t count);

  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Writes what is left and syncs the file.
  FileSummary finish();

 private:
  void flush();

  File file_;
  std::vector<std::byte> pending_;
  std::uint64_t size_ = 0;  ///< Bytes appended, pending ones included.
  std::uint32_t crc_ = 0;
  bool finished_ = false;
};

}  // namespace accel::ckpt
