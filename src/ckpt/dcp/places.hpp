#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/host/large_memory.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {

/// A map from (fqn, offset), which identifies a chunk, to a value, for the millions of entries of
/// storage_data: a chunk of two dimensions takes 40 bytes. FQNs and values are numbers here. As in a dict of
/// Python, the value that is added last counts.
///
///   DcpPlaces places(fqns);
///   places.add_chunk(fqn, offset, value);   // and others
///   places.sort();
///   places.select(fqn);
///   places.find_chunk(offset);
class DcpPlaces {
 public:
  DcpPlaces() = default;
  explicit DcpPlaces(std::size_t fqns) : fqns_(fqns) {}

  void reserve(std::size_t count) { places_.reserve(count); }
  void add_chunk(std::uint32_t fqn, std::span<const std::int64_t> offset, std::uint32_t value);
  void add_object(std::uint32_t fqn, std::uint32_t value);

  /// Sorts the places. Call it once, after the last add and before the first find.
  void sort();

  [[nodiscard]] std::optional<std::uint32_t> find_object(std::size_t fqn) const;
  /// Makes find_chunk search the chunks of `fqn`. Searching in the order of the offsets is fastest.
  void select(std::size_t fqn);
  [[nodiscard]] std::optional<std::uint32_t> find_chunk(std::span<const std::int64_t> offset);

 private:
  struct Place {
    std::uint64_t offset = 0;  // Index of the first number of the offset in offsets_.
    std::uint32_t fqn = 0;
    std::uint32_t rank = 0;
    std::uint32_t value;
    bool is_chunk = false;
  };

  [[nodiscard]] std::span<const Place> of(std::size_t fqn) const;
  [[nodiscard]] std::span<const std::int64_t> offset_of(const Place& place) const {
    return std::span(offsets_).subspan(place.offset, place.rank);
  }
  [[nodiscard]] bool less(const Place& a, const Place& b) const;

  std::size_t fqns_ = 0;
  LargeVector<Place> places_;
  LargeVector<std::int64_t> offsets_;
  std::vector<std::size_t> begins_;  // Maps an fqn to the index of its first place.
  std::span<const Place> selected_;
  std::size_t next_ = 0;  // The index in selected_ to look at first.
};

}  // namespace accel::ckpt
