#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/pickle/fields.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {

/// What may be built from a `.metadata`, in bytes: some times the memory of the input, which is more than any
/// real one needs, as a chunk has 150 bytes or more of its own there. Parts that are shared can only be meant
/// to exhaust it.
class DcpBudget {
 public:
  explicit DcpBudget(std::uint64_t input_bytes)
      : left_(std::min(metadata_limit(), kAtLeast + kBytesPerByte * input_bytes)) {}

  /// Throws Error (kCorrupt) when it is used up.
  void spend(std::uint64_t bytes) {
    check_interrupted();
    if (bytes > left_) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("what it says, with shared parts written out, would fill the memory ({})",
                              kMetadataLimitVariable));
    }
    left_ -= bytes;
  }

 private:
  static constexpr std::uint64_t kBytesPerByte = 8;
  static constexpr std::uint64_t kAtLeast = std::uint64_t{64} << 20;

  std::uint64_t left_;
};

/// Reads shapes and offsets: a torch.Size, or any sequence of integers that are not negative.
class DcpDimsReader {
 public:
  /// Throws Error (kCorrupt).
  void read(pickle::NodeRef value, Dims& dims, DcpBudget& budget) {
    std::optional<pickle::NodeList> items = value.sequence();
    if (!items && torch_size_.is(value)) {
      const pickle::NodeList args = value.call()->args();
      items = args.empty() ? args : args[0].sequence();
    }
    if (!items) pickle::reject("a tensor whose shape is", value);
    budget.spend(items->size());
    dims.clear();
    dims.reserve(items->size());
    for (std::size_t i = 0; i < items->size(); ++i) {
      const std::optional<std::int64_t> dim = (*items)[i].integer();
      if (!dim || *dim < 0) pickle::reject("a dimension is not a size", (*items)[i]);
      dims.push_back(*dim);
    }
  }

 private:
  pickle::Type torch_size_{"torch", "Size"};
};

/// Metadata and all that it holds are dataclasses of torch; their modules have moved between its versions.
inline constexpr std::string_view kDcpModule = "torch.";

}  // namespace accel::ckpt
