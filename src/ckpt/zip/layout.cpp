#include "ckpt/zip/layout.hpp"

#include <algorithm>
#include <utility>

#include "base/checked.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/zip/format.hpp"

namespace accel::ckpt {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kExtraHeader = 4;  // The size of the id and length of an extra field.

bool large(const ZipRecord& record) { return record.size >= zip::kMax32; }
bool far(const ZipRecord& record) { return record.header_offset >= zip::kMax32; }

// miniz writes no descriptor for an empty record, and clears the flag for it.
std::uint16_t flags_of(const ZipRecord& record) {
  return record.size == 0 ? zip::kUtf8Names : std::uint16_t{zip::kUtf8Names | zip::kHasDescriptor};
}

// The contents of the zip64 extra field; empty if none is needed. The local header carries no compressed
// size.
std::string zip64_extra(const ZipRecord& record, bool local) {
  std::string extra;
  if (large(record)) {
    put_uint(extra, record.size, 8);
    put_uint(extra, local ? 0 : record.size, 8);
  }
  if (far(record)) put_uint(extra, record.header_offset, 8);
  if (extra.empty()) return extra;
  std::string field;
  put_uint(field, zip::kZip64Extra, 2);
  put_uint(field, extra.size(), 2);
  return field + extra;
}

std::uint64_t descriptor_bytes(const ZipRecord& record) {
  if (record.size == 0) return 0;
  return large(record) || far(record) ? 24 : 16;
}

}  // namespace

ZipLayout::ZipLayout(std::vector<ZipRecord> records) : records_(std::move(records)) {
  std::uint64_t cursor = 0;
  for (ZipRecord& record : records_) {
    record.header_offset = cursor;
    const std::uint64_t unpadded = cursor + zip::kLocalHeaderBytes + record.name.size() +
                                   zip64_extra(record, true).size() + kExtraHeader;
    record.data_offset = round_up(unpadded, kAlignment);
    cursor = checked_add(checked_add(record.data_offset, record.size), descriptor_bytes(record));
    directory_bytes_ += zip::kDirectoryHeaderBytes + record.name.size() + zip64_extra(record, false).size();
  }
  directory_offset_ = cursor;
  total_bytes_ =
      directory_offset_ + directory_bytes_ + zip::kZip64EndBytes + zip::kZip64LocatorBytes + zip::kEndBytes;
}

std::string ZipLayout::header(std::size_t index) const {
  const ZipRecord& record = records_.at(index);
  const std::string zip64 = zip64_extra(record, true);
  const std::uint64_t extra_begin = record.header_offset + zip::kLocalHeaderBytes + record.name.size();
  std::string out;
  put_uint(out, zip::kLocalHeader, 4);
  put_uint(out, 0, 2);  // version needed
  put_uint(out, flags_of(record), 2);
  put_uint(out, 0, 2 + 2 + 2);  // stored; no time, no date
  put_uint(out, 0, 4);          // CRC
  put_uint(out, 0, 8);          // compressed and uncompressed size; in the descriptor
  put_uint(out, record.name.size(), 2);
  put_uint(out, record.data_offset - extra_begin, 2);
  out += record.name;
  out += zip64;
  const std::uint64_t padding = record.data_offset - extra_begin - zip64.size() - kExtraHeader;
  put_uint(out, zip::kPaddingExtra, 2);
  put_uint(out, padding, 2);
  out.append(padding, 'Z');
  return out;
}

std::string ZipLayout::descriptor(std::size_t index, std::uint32_t crc) const {
  const ZipRecord& record = records_.at(index);
  const std::size_t width = descriptor_bytes(record) == 24 ? 8 : 4;
  std::string out;
  if (record.size == 0) return out;
  put_uint(out, zip::kDescriptor, 4);
  put_uint(out, crc, 4);
  put_uint(out, record.size, width);
  put_uint(out, record.size, width);
  return out;
}

std::string ZipLayout::directory(std::span<const std::uint32_t> crcs) const {
  std::string out;
  out.reserve(directory_bytes_ + zip::kZip64EndBytes + zip::kZip64LocatorBytes + zip::kEndBytes);
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const ZipRecord& record = records_[i];
    const std::string zip64 = zip64_extra(record, false);
    const std::uint64_t size32 = large(record) ? zip::kMax32 : record.size;
    put_uint(out, zip::kDirectoryHeader, 4);
    put_uint(out, 0, 2 + 2);  // version made by and needed
    put_uint(out, flags_of(record), 2);
    put_uint(out, 0, 2 + 2 + 2);
    put_uint(out, crcs[i], 4);
    put_uint(out, size32, 4);
    put_uint(out, size32, 4);
    put_uint(out, record.name.size(), 2);
    put_uint(out, zip64.size(), 2);
    put_uint(out, 0, 2 + 2 + 2);  // comment length, disk, internal attributes
    put_uint(out, 0, 4);          // external attributes
    put_uint(out, std::min(record.header_offset, zip::kMax32), 4);
    out += record.name;
    out += zip64;
  }

  put_uint(out, zip::kZip64End, 4);
  put_uint(out, zip::kZip64EndBytes - 12, 8);
  put_uint(out, 0x031e, 2);  // made by
  put_uint(out, 0x002d, 2);  // needed
  put_uint(out, 0, 4 + 4);   // disks
  put_uint(out, records_.size(), 8);
  put_uint(out, records_.size(), 8);
  put_uint(out, directory_bytes_, 8);
  put_uint(out, directory_offset_, 8);

  put_uint(out, zip::kZip64Locator, 4);
  put_uint(out, 0, 4);
  put_uint(out, directory_offset_ + directory_bytes_, 8);
  put_uint(out, 1, 4);

  const std::uint64_t count16 = std::min<std::uint64_t>(records_.size(), zip::kMax16);
  put_uint(out, zip::kEnd, 4);
  put_uint(out, 0, 2 + 2);
  put_uint(out, count16, 2);
  put_uint(out, count16, 2);
  put_uint(out, std::min(directory_bytes_, zip::kMax32), 4);
  put_uint(out, std::min(directory_offset_, zip::kMax32), 4);
  put_uint(out, 0, 2);  // comment length
  return out;
}

}  // namespace accel::ckpt
