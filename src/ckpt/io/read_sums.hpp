#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/io/byte_source.hpp"

namespace accel::ckpt {

/// Bytes [begin, end) of a file and their CRC-32.
struct SummedRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t crc32 = 0;

  friend auto operator<=>(const SummedRange&, const SummedRange&) = default;
};

/// The CRCs of everything that is read of some files, so that the files can be compared with their sums
/// without being read again. One thread at a time may use it.
class ReadSums {
 public:
  /// Notes that bytes of `file` from `offset` on were read. Bytes that follow those of the last call for that
  /// file cost no memory.
  void add(const std::string& file, std::uint64_t offset, std::span<const std::byte> bytes);
  /// What was read, by the path of the file. A range that begins where another ends is joined with it.
  [[nodiscard]] std::map<std::string, std::vector<SummedRange>> take();

 private:
  std::map<std::string, std::vector<SummedRange>, std::less<>> files_;
};

/// A source that notes in `sums` what is read of another one. `file` is the path of the file. All three must
/// outlive it.
class SummingSource final : public ByteSource {
 public:
  SummingSource(ByteSource& source, const std::string& file, ReadSums& sums)
      : source_(source), file_(file), sums_(sums) {}

  [[nodiscard]] std::uint64_t size() override { return source_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) override {
    source_.read_at(offset, out);
    sums_.add(file_, offset, out);
  }
  [[nodiscard]] std::string name() const override { return source_.name(); }

 private:
  ByteSource& source_;
  const std::string& file_;
  ReadSums& sums_;
};

/// Sorts the ranges, and joins those that touch.
void join_ranges(std::vector<SummedRange>& ranges);

/// The CRC-32 of the bytes [0, size), put together from `ranges`, which may overlap. What they leave open is
/// asked of `read_gap(begin, end)`, which returns the CRC of these bytes. Nothing if that would be more than
/// `most_gap_bytes`.
[[nodiscard]] std::optional<std::uint32_t> crc_of_ranges(
    std::vector<SummedRange> ranges, std::uint64_t size, std::uint64_t most_gap_bytes,
    const std::function<std::uint32_t(std::uint64_t begin, std::uint64_t end)>& read_gap);

}  // namespace accel::ckpt
