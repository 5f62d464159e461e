#include "ckpt/dcp/places.hpp"

#include <algorithm>

namespace accel::ckpt {

void DcpPlaces::add_chunk(std::uint32_t fqn, std::span<const std::int64_t> offset, std::uint32_t value) {
  places_.push_back({offsets_.size(), fqn, static_cast<std::uint32_t>(offset.size()), value, true});
  offsets_.insert(offsets_.end(), offset.begin(), offset.end());
}

void DcpPlaces::add_object(std::uint32_t fqn, std::uint32_t value) {
  places_.push_back({0, fqn, 0, value, false});
}

bool DcpPlaces::less(const Place& a, const Place& b) const {
  if (a.is_chunk != b.is_chunk) return b.is_chunk;
  return std::ranges::lexicographical_compare(offset_of(a), offset_of(b));
}

void DcpPlaces::sort() {
  begins_.assign(fqns_ + 1, 0);
  for (const Place& place : places_) ++begins_[place.fqn + 1];
  for (std::size_t fqn = 0; fqn < fqns_; ++fqn) begins_[fqn + 1] += begins_[fqn];
  const auto by_fqn = [](const Place& a, const Place& b) { return a.fqn < b.fqn; };
  if (!std::is_sorted(places_.begin(), places_.end(), by_fqn)) {
    LargeVector<Place> grouped(places_.size());
    std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
    for (const Place& place : places_) grouped[next[place.fqn]++] = place;
    places_ = std::move(grouped);
  }
  const auto by_offset = [&](const Place& a, const Place& b) { return less(a, b); };
  for (std::size_t fqn = 0; fqn < fqns_; ++fqn) {
    const auto begin = places_.begin() + static_cast<std::ptrdiff_t>(begins_[fqn]);
    const auto end = places_.begin() + static_cast<std::ptrdiff_t>(begins_[fqn + 1]);
    if (!std::is_sorted(begin, end, by_offset)) std::stable_sort(begin, end, by_offset);
  }
}

std::span<const DcpPlaces::Place> DcpPlaces::of(std::size_t fqn) const {
  return std::span(places_).subspan(begins_[fqn], begins_[fqn + 1] - begins_[fqn]);
}

std::optional<std::uint32_t> DcpPlaces::find_object(std::size_t fqn) const {
  const std::span<const Place> places = of(fqn);
  const auto end = std::ranges::find_if(places, [](const Place& place) { return place.is_chunk; });
  if (end == places.begin()) return std::nullopt;
  return std::prev(end)->value;
}

void DcpPlaces::select(std::size_t fqn) {
  selected_ = of(fqn);
  next_ = 0;
}

std::optional<std::uint32_t> DcpPlaces::find_chunk(std::span<const std::int64_t> offset) {
  const auto is_wanted = [&](std::size_t i) {
    return selected_[i].is_chunk && std::ranges::equal(offset_of(selected_[i]), offset);
  };
  // The last place with this offset, which is mostly the next one.
  if (next_ >= selected_.size() || !is_wanted(next_)) {
    const auto beyond = std::ranges::upper_bound(
        selected_, offset,
        [](std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
          return std::ranges::lexicographical_compare(a, b);
        },
        [&](const Place& place) { return offset_of(place); });
    if (beyond == selected_.begin()) return std::nullopt;
    next_ = static_cast<std::size_t>(beyond - selected_.begin()) - 1;
    if (!is_wanted(next_)) return std::nullopt;
  }
  while (next_ + 1 < selected_.size() && is_wanted(next_ + 1)) ++next_;
  return selected_[next_++].value;
}

}  // namespace accel::ckpt
