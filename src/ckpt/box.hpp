#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace accel::ckpt {

/// Dimensions of a tensor, or one position in it.
using Dims = std::vector<std::int64_t>;

/// An axis-aligned part of a tensor: elements [offsets[d], offsets[d] + sizes[d]) of every dimension d. The
/// box of a 0-dim tensor has no dimensions and one element.
struct Box {
  Dims offsets;
  Dims sizes;

  /// The box that is all of `shape`.
  static Box whole(const Dims& shape);
  /// Elements in the box. Throws Error (kCorrupt) on overflow or a negative size.
  [[nodiscard]] std::int64_t numel() const;

  friend bool operator==(const Box&, const Box&) = default;
};

/// The elements [begin, end) of a row-major tensor as boxes: a partial row, whole rows, a partial row, and so
/// on in each dimension; at most 2 (d - 1) + 1 of them. They come in flat order, so their contents, one after
/// another and each row-major, are the range itself. An empty range gives none. Throws Error (kCorrupt)
/// unless 0 <= begin <= end <= numel.
[[nodiscard]] std::vector<Box> boxes_of_range(const Dims& shape, std::int64_t begin, std::int64_t end);

/// What two boxes of the same tensor share; nothing if that has no element.
[[nodiscard]] std::optional<Box> intersect(const Box& a, const Box& b);

/// Whether two boxes of the same tensor share an element.
[[nodiscard]] bool overlap(const Box& a, const Box& b);

/// Strides, in elements, of a dense row-major tensor.
[[nodiscard]] Dims row_major_strides(const Dims& shape);

/// The flat row-major index of `position` in `shape`.
[[nodiscard]] std::int64_t flat_index(const Dims& shape, const Dims& position);

/// Throws Error (kCorrupt) unless `box` has the rank of `shape`, and lies within it.
void check_within(const Box& box, const Dims& shape);

/// Throws Error (kCorrupt) if two of `boxes` share an element; the message names both. Takes n log n for n
/// boxes that any sharding makes: slices of dimensions, grids of them, flat ranges. Boxes by the hundred
/// thousand without any such order are refused, as they could take forever.
void check_disjoint(std::span<const Box> boxes);
void check_disjoint(std::span<const Box* const> boxes);

/// Throws Error (kCorrupt) unless `boxes` lie within `shape`, share no element and cover all of it.
void check_tiling(std::span<const Box> boxes, const Dims& shape);
void check_tiling(std::span<const Box* const> boxes, const Dims& shape);

/// "[2, 3]".
[[nodiscard]] std::string to_string(const Dims& dims);
/// "[0:2, 4:8]".
[[nodiscard]] std::string to_string(const Box& box);

}  // namespace accel::ckpt
