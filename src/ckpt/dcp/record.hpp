#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "ckpt/tensor/state_path.hpp"

namespace accel::ckpt {

/// What stands in front of each item of a data file that accel writes (docs/formats.md, "Item records"): all
/// that `.metadata` would say of it, so that a lost `.metadata` can be rebuilt. DCP's own readers skip it, as
/// they skip every gap.
struct ItemRecord {
  struct Chunk {
    DType dtype = DType::kFloat32;
    Dims shape;  ///< Of the whole tensor.
    Box box;

    friend bool operator==(const Chunk&, const Chunk&) = default;
  };

  std::uint32_t rank = 0;
  std::uint32_t index = 0;   ///< Which item of the file this is,
  std::uint32_t count = 0;   ///< and of how many.
  std::uint64_t offset = 0;  ///< Of the item in the file.
  std::uint64_t length = 0;
  StatePath path;
  std::optional<Chunk> chunk;  ///< Nothing: an object.

  friend bool operator==(const ItemRecord&, const ItemRecord&) = default;
};

/// Records and items begin at multiples of this.
inline constexpr std::uint64_t kDcpAlignment = 64;

/// The record's bytes. Their number does not depend on rank, index, count, offset or length.
[[nodiscard]] std::string encode_item_record(const ItemRecord& record);

/// Whether a record begins with `bytes`, of which 8 are needed, going by its first bytes alone.
[[nodiscard]] bool looks_like_item_record(std::span<const std::byte> bytes);

/// How many bytes a record has, from its first kItemRecordHead bytes; nothing if they are not one's.
inline constexpr std::size_t kItemRecordHead = 24;
[[nodiscard]] std::optional<std::uint64_t> item_record_bytes(std::span<const std::byte> head);

/// Reads a whole record. Throws Error (kCorrupt) if its checksum or anything in it is wrong.
[[nodiscard]] ItemRecord decode_item_record(std::span<const std::byte> bytes);

}  // namespace accel::ckpt
