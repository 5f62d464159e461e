#include "ckpt/io/read_sums.hpp"

#include <algorithm>
#include <utility>

#include "ckpt/io/crc32.hpp"

namespace accel::ckpt {
namespace {

/// A file of which so many ranges were read is not noted any further, as its sums would take too much memory.
constexpr std::size_t kMostRanges = std::size_t{1} << 20;

}  // namespace

void ReadSums::add(const std::string& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  std::vector<SummedRange>& ranges = files_[file];
  if (!ranges.empty() && ranges.back().end == offset) {
    ranges.back().crc32 = crc32(bytes, ranges.back().crc32);
    ranges.back().end += bytes.size();
  } else if (ranges.size() < kMostRanges) {
    ranges.push_back({offset, offset + bytes.size(), crc32(bytes)});
  }
}

std::map<std::string, std::vector<SummedRange>> ReadSums::take() {
  std::map<std::string, std::vector<SummedRange>> taken;
  for (auto& [file, ranges] : std::exchange(files_, {})) {
    join_ranges(ranges);
    taken.emplace(file, std::move(ranges));
  }
  return taken;
}

void join_ranges(std::vector<SummedRange>& ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<SummedRange> joined;
  for (const SummedRange& range : ranges) {
    if (!joined.empty() && joined.back() == range) continue;
    if (joined.empty() || joined.back().end != range.begin) {
      joined.push_back(range);
      continue;
    }
    joined.back().crc32 = crc32_combine(joined.back().crc32, range.crc32, range.end - range.begin);
    joined.back().end = range.end;
  }
  ranges = std::move(joined);
}

std::optional<std::uint32_t> crc_of_ranges(
    std::vector<SummedRange> ranges, std::uint64_t size, std::uint64_t most_gap_bytes,
    const std::function<std::uint32_t(std::uint64_t begin, std::uint64_t end)>& read_gap) {
  // If several ranges begin at the same byte, the longest comes first.
  std::sort(ranges.begin(), ranges.end(), [](const SummedRange& a, const SummedRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<SummedRange> pieces;
  std::uint64_t at = 0;
  std::uint64_t gaps = 0;
  const auto leave_gap = [&](std::uint64_t end) {
    if (end == at) return;
    pieces.push_back({at, end, 0});
    gaps += end - at;
    at = end;
  };
  std::vector<bool> is_gap;
  for (const SummedRange& range : ranges) {
    if (range.begin < at || range.end > size) continue;
    leave_gap(range.begin);
    is_gap.resize(pieces.size(), true);
    pieces.push_back(range);
    is_gap.push_back(false);
    at = range.end;
  }
  leave_gap(size);
  is_gap.resize(pieces.size(), true);
  if (gaps > most_gap_bytes) return std::nullopt;
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const SummedRange& piece = pieces[i];
    const std::uint32_t own = is_gap[i] ? read_gap(piece.begin, piece.end) : piece.crc32;
    crc = crc32_combine(crc, own, piece.end - piece.begin);
  }
  return crc;
}

}  // namespace accel::ckpt
