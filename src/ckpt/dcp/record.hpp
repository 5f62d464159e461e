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

/// The record that accel writes in front of each item of a data file (docs/formats.md, "Item records"). It
/// has everything that `.metadata` says about the item, so that a lost `.metadata` can be rebuilt. The
/// readers of DCP skip it, like any gap between items.
struct ItemRecord {
  struct Chunk {
    DType dtype = DType::kFloat32;
    Dims shape;  ///< Shape of the whole tensor.
    Box box;

    friend bool operator==(const Chunk&, const Chunk&) = default;
  };

  std::uint32_t rank = 0;
  std::uint32_t index = 0;   ///< Index of the item in the file.
  std::uint32_t count = 0;   ///< Number of items in the file.
  std::uint64_t offset = 0;  ///< Offset of the item in the file.
  std::uint64_t length = 0;
  StatePath path;
  std::optional<Chunk> chunk;  ///< It is absent for an object.

  friend bool operator==(const ItemRecord&, const ItemRecord&) = default;
};

/// Records and items begin at multiples of this.
inline constexpr std::uint64_t kDcpAlignment = 64;

/// The bytes of the record. Their number does not depend on rank, index, count, offset or length.
[[nodiscard]] std::string encode_item_record(const ItemRecord& record);

/// Whether `bytes` begin with the 8 bytes that every record begins with.
[[nodiscard]] bool looks_like_item_record(std::span<const std::byte> bytes);

/// The size of a record, from its first kItemRecordHead bytes, or nothing if they are not those of a record.
inline constexpr std::size_t kItemRecordHead = 24;
[[nodiscard]] std::optional<std::uint64_t> item_record_bytes(std::span<const std::byte> head);

/// Reads a whole record. Throws Error (kCorrupt) if its checksum or anything in it is wrong.
[[nodiscard]] ItemRecord decode_item_record(std::span<const std::byte> bytes);

}  // namespace accel::ckpt
