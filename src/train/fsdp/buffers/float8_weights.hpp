#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <span>
#include <vector>

#include "plan/layout/flat_layout.hpp"
#include "train/c10d/group.hpp"
#include "train/graph/run/float8_cast.hpp"

namespace accel::train {

/// The parameters of a flat buffer that is gathered in float8: one scale for each, and views of what is
/// gathered.
///
/// A rank casts its part of a parameter with the scale of the whole one, which depends on the values of all
/// shards. update_scales() computes the scales, and the owner of the shard calls outdate_scales() whenever
/// the shard may have changed. A cast with outdated scales is an Error.
class Float8Weights {
 public:
  /// `memory` has an element of one byte for each element of the layout.
  Float8Weights(const FlatLayout& layout, const c10::Storage& memory);

  /// The gathered parameters in layout order, each with its scale. The tensors stay the same; their data may
  /// be touched while the flat buffer is unsharded.
  [[nodiscard]] const std::vector<Float8Matrix>& gathered() const { return gathered_; }

  /// Casts `values`, the elements of shard `shard` on the device that computes, [shard_numel], to `bytes`,
  /// which are float8_e4m3fn. Padding is left out.
  void cast(const at::Tensor& bytes, const at::Tensor& values, int shard) const;

  /// Whether the scales are not those of the shards any more.
  [[nodiscard]] bool is_outdated() const { return outdated_; }
  void outdate_scales() { outdated_ = true; }

  /// The largest magnitude of the elements of each parameter that are in shard `shard`, float32
  /// [parameters], where `values` are; 0 for a parameter without such an element.
  [[nodiscard]] at::Tensor largest_in(const at::Tensor& values, int shard) const;
  /// Sets the scales, float32 [parameters] on the device that computes.
  void set_scales(const at::Tensor& scales);

 private:
  const FlatLayout& layout_;
  at::Tensor scales_;
  std::vector<Float8Matrix> gathered_;
  bool outdated_ = true;
};

class FlatBuffer;

/// Computes the scales of those of `buffers` whose scales are outdated, in one all-reduce over the shard
/// group. Collective: all ranks call it with the same buffers, after the same changes of their shards. The
/// scale of a weight is that of torchao's precompute_float8_dynamic_scale_for_fsdp().
void update_float8_scales(std::span<FlatBuffer* const> buffers, Group& shard_group);

}  // namespace accel::train
