#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "core/config/config.hpp"
#include "plan/low_rank_plan.hpp"
#include "plan/numpy_random.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// The flat gradient of one buffer made into the mean of all ranks as PowerSGD does it: large matrices travel
/// as two factors of low rank, and what that loses is added to the next step's gradient.
///
/// Each rank keeps that error, which is as large as the gradient, and with a warm start the factors Q, which
/// are the same on every rank.
///
/// Source: torch, powerSGD_hook, to rounding, if the bucket there has the matrices in the order of the
/// layout. Only that torch sends what is not factored, and P, one after the other.
class PowerSgd {
 public:
  /// `seeds` are drawn from by all buffers of a model, in the order in which they are reduced.
  PowerSgd(const FlatLayout& layout, const core::PowerSgdConfig& config, std::shared_ptr<NumpyRandom> seeds);

  /// `gradient` [layout.numel()] is overwritten until finish() has made it the mean. Collective, as is
  /// finish(), over the ranks of `group`, which must outlive that.
  void start(Group& group, const at::Tensor& gradient);
  void finish();
  /// Drops the error and the factors, which an infinite or NaN gradient would leave so for good. On all ranks
  /// alike.
  void forget();

 private:
  void add_error();
  void make_qs();
  void compute_ps();
  void take_uncompressed();
  void compute_qs();
  void decompress();
  /// One matrix of the gradient, and its factors: [1, rows, columns], [1, rows, rank], [1, columns, rank].
  [[nodiscard]] at::Tensor m(const LowRankMatrix& matrix) const;
  [[nodiscard]] at::Tensor p(const LowRankMatrix& matrix) const;
  [[nodiscard]] at::Tensor q(const LowRankMatrix& matrix) const;

  core::PowerSgdConfig config_;
  LowRankPlan plan_;
  std::shared_ptr<NumpyRandom> seeds_;
  std::int64_t iteration_ = 0;
  at::Tensor error_;  // Undefined: none yet.
  at::Tensor qs_;     // [plan_.q_numel]; undefined: to be drawn.

  // Between start() and finish():
  Group* group_ = nullptr;
  at::Tensor gradient_;
  at::Tensor sent_;  // What is not factored, and behind it all P.
  Pending pending_;
};

/// Makes the columns of each matrix [batch, rows, rank] orthonormal in place, as PowerSGD in torch does it:
/// up to rank 2, and in 16 bits, by Gram-Schmidt, with `epsilon` added to each norm, else by QR.
void orthogonalize(const at::Tensor& matrices, double epsilon);

}  // namespace accel::train
