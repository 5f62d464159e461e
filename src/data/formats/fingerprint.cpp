#include "data/formats/fingerprint.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "ckpt/io/crc32.hpp"

namespace accel {
namespace {

constexpr std::int64_t kPlaces = 64;
constexpr std::int64_t kTokens = 64;         // How many are read at each place.
constexpr std::size_t kMostRowBytes = 4096;  // The most bytes that are read of a sample's tensor.

/// Place number `place` of those from 0 to `last`, without an overflow.
std::int64_t place_before(std::int64_t last, std::int64_t place) {
  constexpr std::int64_t kGaps = kPlaces - 1;
  return last / kGaps * place + last % kGaps * place / kGaps;
}

/// A CRC-32 that grows with each range of tokens.
class TokenSum {
 public:
  explicit TokenSum(const TokenStream& stream) : stream_(stream) {}

  void add(std::int64_t begin, std::int64_t count) {
    tokens_.resize(static_cast<std::size_t>(count));
    stream_.read(begin, tokens_);
    crc_ = ckpt::crc32(std::as_bytes(std::span(tokens_)), crc_);
  }
  [[nodiscard]] std::uint32_t value() const { return crc_; }

 private:
  const TokenStream& stream_;
  std::vector<std::int64_t> tokens_;
  std::uint32_t crc_ = 0;
};

}  // namespace

std::uint32_t fingerprint_of(const TokenStream& stream) {
  const std::int64_t count = std::min(stream.size(), kTokens);
  TokenSum sum(stream);
  for (std::int64_t place = 0; place < kPlaces; ++place)
    sum.add(place_before(stream.size() - count, place), count);
  for (const std::int64_t end : stream.file_ends()) {
    const std::int64_t of_file = std::min(end, kTokens);
    sum.add(end - of_file, of_file);
  }
  return sum.value();
}

std::uint32_t fingerprint_of(const TensorTable& table) {
  std::vector<std::int64_t> rows;
  for (std::int64_t place = 0; place < kPlaces; ++place)
    rows.push_back(place_before(table.size() - 1, place));
  for (const std::int64_t end : table.file_ends()) rows.push_back(end - 1);
  std::uint32_t crc = 0;
  std::vector<std::byte> bytes;
  for (std::size_t field = 0; field < table.fields().size(); ++field) {
    const std::size_t all = table.fields()[field].bytes;
    if (all == 0) continue;  // It cannot be read.
    const std::size_t count = std::min(all, kMostRowBytes / 2);
    bytes.resize(count);
    for (const std::int64_t row : rows) {
      for (const std::size_t begin : {std::size_t{0}, all - count}) {
        table.read_bytes(field, row, begin, bytes);
        crc = ckpt::crc32(bytes, crc);
      }
    }
  }
  return crc;
}

std::uint32_t fingerprint_of_samples(const SampleSource& source) {
  std::vector<std::vector<std::byte>> values;
  std::vector<std::span<std::byte>> out;
  for (const SampleField& field : source.fields()) out.emplace_back(values.emplace_back(field.bytes));
  std::uint32_t crc = 0;
  for (std::int64_t place = 0; place < kPlaces; ++place) {
    source.read(place_before(source.size() - 1, place), Labels::kNextTokens, out);
    for (const std::span<std::byte> field : out) crc = ckpt::crc32(field, crc);
  }
  return crc;
}

}  // namespace accel
