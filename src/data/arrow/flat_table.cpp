#include "data/arrow/flat_table.hpp"

#include "base/error.hpp"
#include "ckpt/io/endian.hpp"

namespace accel {
namespace {

constexpr std::size_t kOffsetBytes = 4;

[[noreturn]] void refuse_message() {
  throw Error(ErrorKind::kUsage, "the description of a message in it is damaged: an offset leads out of it");
}

}  // namespace

FlatTable FlatTable::root_of(std::span<const std::byte> message) {
  const FlatTable start(message, 0);
  return {message, start.followed(0)};
}

std::uint64_t FlatTable::uint_at(std::uint64_t at, std::size_t width) const {
  if (at > message_.size() || width > message_.size() - at) refuse_message();
  return ckpt::get_uint(message_, at, width);
}

std::uint64_t FlatTable::followed(std::uint64_t at) const { return at + uint_at(at, kOffsetBytes); }

std::uint64_t FlatTable::place_of(unsigned field) const {
  // A table begins with the signed distance to its list of places. The list begins with two sizes in bytes:
  // its own and the table's.
  const auto distance = static_cast<std::int32_t>(uint_at(at_, kOffsetBytes));
  const std::int64_t list = static_cast<std::int64_t>(at_) - distance;
  if (list < 0) refuse_message();
  const auto places = static_cast<std::uint64_t>(list);
  const std::uint64_t entry = 4 + std::uint64_t{2} * field;
  if (entry + 2 > uint_at(places, 2)) return 0;
  const std::uint64_t offset = uint_at(places + entry, 2);
  return offset == 0 ? 0 : at_ + offset;
}

std::optional<FlatTable> FlatTable::table(unsigned field) const {
  const std::uint64_t at = place_of(field);
  if (at == 0) return std::nullopt;
  return FlatTable(message_, followed(at));
}

FlatVector FlatTable::vector(unsigned field, std::size_t item_bytes) const {
  const std::uint64_t at = place_of(field);
  if (at == 0) return {};
  const std::uint64_t start = followed(at);
  const FlatVector vector{start + kOffsetBytes, uint_at(start, kOffsetBytes)};
  if (vector.begin > message_.size() || vector.size > (message_.size() - vector.begin) / item_bytes)
    refuse_message();
  return vector;
}

std::string_view FlatTable::text(unsigned field) const {
  const FlatVector bytes = vector(field, 1);
  return ckpt::text_of(message_.subspan(bytes.begin, bytes.size));
}

FlatTable FlatTable::table_of(const FlatVector& tables, std::uint64_t item) const {
  if (item >= tables.size) refuse_message();
  return {message_, followed(tables.begin + item * kOffsetBytes)};
}

std::int64_t FlatTable::int64_of(const FlatVector& structs, std::uint64_t item, std::size_t item_bytes,
                                 std::size_t offset) const {
  if (item >= structs.size) refuse_message();
  return static_cast<std::int64_t>(uint_at(structs.begin + item * item_bytes + offset, sizeof(std::int64_t)));
}

}  // namespace accel
