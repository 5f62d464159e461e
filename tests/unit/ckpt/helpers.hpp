#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/dcp/metadata_write.hpp"
#include "ckpt/dcp/rank_plan.hpp"
#include "ckpt/dcp/rank_write.hpp"
#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "temp_dir.hpp"

namespace accel::ckpt::testing {

using accel::testing::names_in;
using accel::testing::read_file;
using accel::testing::TempDir;
using accel::testing::write_file;

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// The message of the Error that `action` must throw, which must be of that kind.
template <class Action>
std::string error_of(ErrorKind kind, Action action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(name_of(e.kind()), name_of(kind)) << e.message();
    return e.message();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

/// A parser may reject broken input with an Error, and may accept it; anything else is a defect (the
/// sanitizers watch).
template <class Action>
void expect_ok_or_error(Action action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_FALSE(e.message().empty());
  }
}

/// Bytes that are different everywhere: the little-endian numbers seed, seed + 1, ...
inline std::string pattern(std::size_t bytes, std::uint32_t seed) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto word = static_cast<std::uint32_t>(seed + i / 4);
    text[i] = static_cast<char>(word >> (8 * (i % 4)) & 0xffU);
  }
  return text;
}

/// A whole tensor in memory, the truth that readers are compared with.
struct Truth {
  StatePath path;
  DType dtype = DType::kFloat32;
  Dims shape;
  std::string data;

  static Truth make(StatePath path, DType dtype, Dims shape, std::uint32_t seed) {
    std::string data = pattern(checked_nbytes(shape, item_bytes(dtype)), seed);
    return {std::move(path), dtype, std::move(shape), std::move(data)};
  }

  /// The row-major bytes of a box.
  [[nodiscard]] std::string part(const Box& box) const {
    std::string bytes;
    const std::uint64_t item = item_bytes(dtype);
    Dims at = box.offsets;
    for (std::int64_t i = 0; i < box.numel(); ++i) {
      bytes += data.substr(static_cast<std::size_t>(flat_index(shape, at)) * item, item);
      for (std::size_t d = at.size(); d-- > 0;) {
        if (++at[d] < box.offsets[d] + box.sizes[d]) break;
        at[d] = box.offsets[d];
      }
    }
    return bytes;
  }
};

/// Which boxes of which tensor a rank has: index into the truths, and the box.
using Assignment = std::vector<std::pair<std::size_t, Box>>;

/// Writes a whole DCP checkpoint: ranks[r] says what rank r holds; rank 0 also gets `objects`.
inline std::vector<DcpRankPlan> write_checkpoint(const std::filesystem::path& directory,
                                                 const std::vector<Truth>& truths,
                                                 const std::vector<Assignment>& ranks,
                                                 const std::vector<DcpItem>& objects = {}) {
  std::filesystem::create_directories(directory);
  std::vector<DcpRankPlan> plans;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::vector<DcpItem> items;
    for (const auto& [index, box] : ranks[r]) {
      const Truth& truth = truths[index];
      items.push_back({truth.path, TensorChunk{truth.dtype, truth.shape, box}});
    }
    if (r == 0) items.insert(items.end(), objects.begin(), objects.end());
    plans.push_back(plan_dcp_rank(static_cast<int>(r), std::move(items)));
    std::string part;
    write_dcp_rank(directory, plans.back(), [&](std::size_t i) {
      part = truths[ranks[r][i].first].part(ranks[r][i].second);
      return bytes_of(part);
    });
  }
  write_dcp_metadata(directory, plans);
  return plans;
}

/// Every tensor split over `ranks` ranks by flat ranges, as the trainer does it.
inline std::vector<Assignment> flat_split(const std::vector<Truth>& truths, std::size_t ranks) {
  std::vector<Assignment> assignments(ranks);
  for (std::size_t t = 0; t < truths.size(); ++t) {
    const std::int64_t numel = checked_numel(truths[t].shape);
    const auto world = static_cast<std::int64_t>(ranks);
    for (std::int64_t r = 0; r < world; ++r) {
      for (Box& box : boxes_of_range(truths[t].shape, numel * r / world, numel * (r + 1) / world)) {
        assignments[static_cast<std::size_t>(r)].emplace_back(t, std::move(box));
      }
    }
    if (numel == 0) assignments[0].emplace_back(t, Box::whole(truths[t].shape));
  }
  return assignments;
}

}  // namespace accel::ckpt::testing
