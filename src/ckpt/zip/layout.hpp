#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accel::ckpt {

/// One record of an archive to be written.
struct ZipRecord {
  std::string name;  ///< The full name, with the root: "archive/data/0".
  std::uint64_t size = 0;
  std::uint64_t header_offset = 0;
  std::uint64_t data_offset = 0;  ///< The offset is a multiple of 64.
};

/// The byte layout of a torch.save archive (docs/formats.md, "torch zip"), from names and sizes alone: stored
/// records, data descriptors, padding to 64 bytes, zip64 where needed. The CRCs are given later; they do not
/// change any length.
///
/// The archive is, for each record: header(i), its data, descriptor(i, crc); then directory(crcs).
class ZipLayout {
 public:
  /// Lays out the records in their order. Only the name and size of each are read.
  explicit ZipLayout(std::vector<ZipRecord> records);

  [[nodiscard]] const std::vector<ZipRecord>& records() const { return records_; }
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }

  [[nodiscard]] std::string header(std::size_t record) const;
  [[nodiscard]] std::string descriptor(std::size_t record, std::uint32_t crc) const;
  [[nodiscard]] std::string directory(std::span<const std::uint32_t> crcs) const;

 private:
  std::vector<ZipRecord> records_;
  std::uint64_t directory_offset_ = 0;
  std::uint64_t directory_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace accel::ckpt
