#pragma once

#include <algorithm>
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

  /// The box that covers a tensor of `shape`.
  static Box whole(const Dims& shape);
  /// Elements in the box. Throws Error (kCorrupt) on overflow or a negative size.
  [[nodiscard]] std::int64_t numel() const;

  friend bool operator==(const Box&, const Box&) = default;
};

/// A box whose numbers belong to somebody else, such as an array of a million chunks. A Box converts to it.
struct BoxView {
  std::span<const std::int64_t> offsets;
  std::span<const std::int64_t> sizes;

  BoxView() = default;
  BoxView(std::span<const std::int64_t> box_offsets, std::span<const std::int64_t> box_sizes)
      : offsets(box_offsets), sizes(box_sizes) {}
  BoxView(const Box& box) : offsets(box.offsets), sizes(box.sizes) {}  // NOLINT(google-explicit-constructor)

  /// Elements in the box. Throws Error (kCorrupt) on overflow or a negative size.
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] Box copy() const;

  friend bool operator==(const BoxView& a, const BoxView& b) {
    return std::ranges::equal(a.offsets, b.offsets) && std::ranges::equal(a.sizes, b.sizes);
  }
};

/// The elements [begin, end) of a row-major tensor as boxes: a partial row, whole rows, a partial row, and so
/// on in each dimension; at most 2 (d - 1) + 1 of them. They come in flat order, so their contents, one after
/// another and each row-major, are the range itself. An empty range gives none. Throws Error (kCorrupt)
/// unless 0 <= begin <= end <= numel.
[[nodiscard]] std::vector<Box> boxes_of_range(const Dims& shape, std::int64_t begin, std::int64_t end);

/// The box that two boxes of the same tensor share, or nothing if they share no element.
[[nodiscard]] std::optional<Box> intersect(const Box& a, const Box& b);

/// Whether two boxes of the same tensor share an element.
[[nodiscard]] bool overlap(BoxView a, BoxView b);

/// Strides, in elements, of a dense row-major tensor.
[[nodiscard]] Dims row_major_strides(const Dims& shape);

/// The flat row-major index of `position` in `shape`.
[[nodiscard]] std::int64_t flat_index(const Dims& shape, const Dims& position);

/// Throws Error (kCorrupt) unless `box` has the rank of `shape`, and lies within it.
void check_within(BoxView box, std::span<const std::int64_t> shape);

/// Throws Error (kCorrupt) if two of `boxes` share an element; the message names both. Takes time n log n for
/// n boxes that a sharding makes: slices of dimensions, grids of them, flat ranges. Hundreds of thousands of
/// boxes without such an order are an Error (kCorrupt) as well, as the check could take forever.
void check_disjoint(std::span<const Box> boxes);
void check_disjoint(std::span<const BoxView> boxes);

/// Throws Error (kCorrupt) unless `boxes` lie within `shape`, share no element and cover all of it.
void check_tiling(std::span<const Box> boxes, const Dims& shape);
void check_tiling(std::span<const BoxView> boxes, const Dims& shape);

/// The text "[2, 3]".
[[nodiscard]] std::string to_string(std::span<const std::int64_t> dims);
/// The text "[0:2, 4:8]".
[[nodiscard]] std::string to_string(BoxView box);

}  // namespace accel::ckpt
