#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace accel {

/// A vector in a FlatBuffers message: `size` items, one after the other from byte `begin` of the message on.
/// Its bytes lie within the message.
struct FlatVector {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
};

/// A table in a FlatBuffers message (https://flatbuffers.dev/internals/). Fields have numbers, from 0 on, in
/// the order of the schema. Every access is checked: one that would leave the message is an Error of kind
/// kUsage. The message outlives the table.
class FlatTable {
 public:
  [[nodiscard]] static FlatTable root_of(std::span<const std::byte> message);

  /// The integer in a field, or `absent` if the table does not have the field.
  template <class Integer>
  [[nodiscard]] Integer number(unsigned field, Integer absent) const {
    static_assert(std::is_integral_v<Integer>);
    const std::uint64_t at = place_of(field);
    return at == 0 ? absent : static_cast<Integer>(uint_at(at, sizeof(Integer)));
  }
  [[nodiscard]] std::optional<FlatTable> table(unsigned field) const;
  /// The text in a field; empty if the table does not have the field.
  [[nodiscard]] std::string_view text(unsigned field) const;
  /// The vector in a field, whose items have `item_bytes` bytes. It is empty if the table does not have the
  /// field.
  [[nodiscard]] FlatVector vector(unsigned field, std::size_t item_bytes) const;
  /// Table number `item` of a vector of tables, which are items of 4 bytes.
  [[nodiscard]] FlatTable table_of(const FlatVector& tables, std::uint64_t item) const;
  /// The integer of 8 bytes at byte `offset` of item number `item` of a vector of structs.
  [[nodiscard]] std::int64_t int64_of(const FlatVector& structs, std::uint64_t item, std::size_t item_bytes,
                                      std::size_t offset) const;

 private:
  FlatTable(std::span<const std::byte> message, std::uint64_t at) : message_(message), at_(at) {}

  /// Where in the message the value of a field begins; 0 if the table does not have the field.
  [[nodiscard]] std::uint64_t place_of(unsigned field) const;
  [[nodiscard]] std::uint64_t uint_at(std::uint64_t at, std::size_t width) const;
  /// The place to which the offset at `at` leads.
  [[nodiscard]] std::uint64_t followed(std::uint64_t at) const;

  std::span<const std::byte> message_;
  std::uint64_t at_ = 0;  ///< Where the table begins in the message.
};

}  // namespace accel
