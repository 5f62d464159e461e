#include "ckpt/tensor/low_rank.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "base/interrupt.hpp"

namespace accel::ckpt {
namespace {

// Columns that are computed together. The number is constant so that compilers vectorize the loops over them;
// the sums of a row, and the factor's columns for ranks up to 64, fit in the caches.
constexpr std::size_t kTile = 256;
using Tile = std::array<double, kTile>;

/// The columns from `first` on of the right factor, with zeros behind the last one.
std::vector<Tile> tiles_of(const LowRankRows& product, std::size_t first) {
  std::vector<Tile> tiles(static_cast<std::size_t>(product.rank), Tile{});
  const auto columns = static_cast<std::size_t>(product.columns);
  const std::size_t count = std::min(kTile, columns - first);
  for (std::size_t k = 0; k < tiles.size(); ++k)
    std::copy_n(product.right.data() + k * columns + first, count, tiles[k].data());
  return tiles;
}

}  // namespace

void add_low_rank(const LowRankRows& product, std::int64_t begin, std::span<float> values) {
  const auto columns = static_cast<std::size_t>(product.columns);
  const auto rank = static_cast<std::size_t>(product.rank);
  const auto from = static_cast<std::size_t>(begin);
  const std::size_t to = from + values.size();
  if (values.empty()) return;
  for (std::size_t first = 0; first < columns; first += kTile) {
    check_interrupted();
    const std::vector<Tile> tiles = tiles_of(product, first);
    const std::size_t last = std::min(first + kTile, columns);
    for (std::size_t row = from / columns; row * columns < to; ++row) {
      Tile sums{};
      for (std::size_t k = 0; k < rank; ++k) {
        const double factor = product.left[row * rank + k];
        for (std::size_t j = 0; j < kTile; ++j) sums[j] += factor * tiles[k][j];
      }
      // The range may begin and end within a row.
      const std::size_t left = std::max(row * columns + first, from);
      const std::size_t right = std::min(row * columns + last, to);
      for (std::size_t at = left; at < right; ++at) {
        const float delta = static_cast<float>(sums[at - row * columns - first]) * product.scaling;
        values[at - from] += delta;
      }
    }
  }
}

}  // namespace accel::ckpt
