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

/// A limit on the bytes that are built from a `.metadata`: several times the size of the input. No real file
/// needs as much, as each chunk has 150 bytes or more of its own in the input. Only a crafted one, whose
/// chunks share their parts, does.
class DcpBudget {
 public:
  explicit DcpBudget(std::uint64_t input_bytes)
      : left_(std::min(metadata_limit(), kAtLeast + kBytesPerByte * input_bytes)) {}

  /// Throws Error (kCorrupt) when it is used up.
  void spend(std::uint64_t bytes) {
    check_interrupted();
    if (bytes > left_) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("its entries share parts, and written out they would fill the memory ({})",
                              kMetadataLimitVariable));
    }
    left_ -= bytes;
  }

 private:
  static constexpr std::uint64_t kBytesPerByte = 8;
  static constexpr std::uint64_t kAtLeast = std::uint64_t{64} << 20;

  std::uint64_t left_;
};

/// Reads shapes and offsets: a torch.Size, or any sequence of non-negative integers.
class DcpDimsReader {
 public:
  /// Sets `dims`. Throws Error (kCorrupt) for any other value.
  void read(pickle::NodeRef value, Dims& dims, DcpBudget& budget) {
    std::optional<pickle::NodeList> items = value.sequence();
    if (!items && torch_size_.is(value)) {
      const pickle::NodeList args = value.call()->args();
      items = args.empty() ? args : args[0].sequence();
    }
    if (!items) pickle::reject("a shape is not a torch.Size", value);
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

/// The classes of a `.metadata` are dataclasses of torch. Their modules differ between versions of torch.
inline constexpr std::string_view kDcpModule = "torch.";

}  // namespace accel::ckpt
