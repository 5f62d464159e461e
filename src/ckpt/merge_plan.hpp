#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/model_tensors.hpp"
#include "ckpt/safetensors.hpp"
#include "ckpt/stored_tensor.hpp"

namespace accel::ckpt {

/// One tensor of the merged file: where its bytes are, and where they go.
struct MergeTensor {
  StoredTensor source;
  std::uint64_t target = 0;  ///< Byte offset in the merged file.
  std::uint64_t bytes = 0;
};

/// Everything that a merge will do, as a value: it can be printed, tested and executed.
struct MergePlan {
  std::vector<MergeTensor> tensors;  ///< In the order of the merged file.
  std::vector<Tie> ties;             ///< Left out, as the same bytes are there under another name.
  std::string prefix;                ///< The header of the merged file.
  std::uint64_t total_bytes = 0;     ///< Of the merged file.

  [[nodiscard]] std::uint64_t tensor_bytes() const { return total_bytes - prefix.size(); }
};

/// Plans one safetensors file with all of `tensors` but the dropped ones of `ties`; each of those is recorded
/// in the header's metadata as `dropped: kept`. Pure. Throws Error: kCorrupt if a tensor's extents leave a
/// hole or overlap; kFailure for what safetensors cannot hold.
[[nodiscard]] MergePlan plan_merge(std::vector<StoredTensor> tensors, std::vector<Tie> ties);

/// The plan for people: what goes where, one tensor a line and its pieces below it.
[[nodiscard]] std::string describe(const MergePlan& plan);

}  // namespace accel::ckpt
