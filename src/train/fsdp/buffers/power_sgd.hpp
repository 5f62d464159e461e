#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "core/config/config.hpp"
#include "plan/layout/low_rank_plan.hpp"
#include "plan/layout/numpy_random.hpp"
#include "train/c10d/group.hpp"

namespace accel::train {

/// Takes the mean of the flat gradient of one buffer over all ranks as PowerSGD does: large matrices are sent
/// as two factors of low rank, and the error of that is added to the next step's gradient.
///
/// Each rank keeps the error, which is as large as the gradient. With a warm start it keeps the factors Q,
/// too, which are the same on every rank.
///
/// Source: torch, powerSGD_hook. Results are equal up to rounding if torch's bucket has the matrices in the
/// order of the layout. Torch sends the uncompressed gradients and P in two all-reduces, this class in one.
class PowerSgd {
 public:
  /// All buffers of a model draw from `seeds`, in the order in which they are reduced.
  PowerSgd(const FlatLayout& layout, const config::PowerSgdConfig& config,
           std::shared_ptr<NumpyRandom> seeds);

  /// Starts with this rank's `gradient` [layout.numel()], which finish() replaces by the mean; its values in
  /// between are undefined. Both are collective over the ranks of `group`, which must outlive finish().
  void start(Group& group, const at::Tensor& gradient);
  void finish();
  /// Drops the error and the factors: an infinite or NaN gradient would make them so permanently. Call it on
  /// all ranks.
  void reset();

  /// What a checkpoint holds of it. Both tensors may be undefined.
  struct State {
    std::int64_t iteration = 0;
    at::Tensor error;  ///< The error of this rank, [layout.numel()].
    at::Tensor qs;     ///< The factors Q, the same on every rank.
  };
  [[nodiscard]] State state() const { return {iteration_, error_, qs_}; }
  /// Goes on from `state`. The sizes of its tensors must fit; q_numel() says that of the factors.
  void restore(State state);
  [[nodiscard]] std::int64_t q_numel() const { return plan_.q_numel; }

 private:
  void add_error();
  void prepare_qs();
  /// Calls `function` with each uncompressed part of sent_ and of the gradient.
  template <typename Function>
  void for_uncompressed(Function function);
  /// One matrix of the gradient, and its factors: [1, rows, columns], [1, rows, rank], [1, columns, rank].
  [[nodiscard]] at::Tensor m(const LowRankMatrix& matrix) const;
  [[nodiscard]] at::Tensor p(const LowRankMatrix& matrix) const;
  [[nodiscard]] at::Tensor q(const LowRankMatrix& matrix) const;

  config::PowerSgdConfig config_;
  LowRankPlan plan_;
  std::shared_ptr<NumpyRandom> seeds_;
  std::int64_t iteration_ = 0;
  at::Tensor error_;  // It is undefined if there is none yet.
  at::Tensor qs_;     // The factors, [plan_.q_numel]; undefined if they have to be drawn.

  // State between start() and finish().
  Group* group_ = nullptr;
  at::Tensor gradient_;
  at::Tensor sent_;  // The uncompressed gradients, followed by all P.
  Pending pending_;
};

/// Makes the columns of each matrix [batch, rows, rank] orthonormal in place, as torch's PowerSGD does: by
/// Gram-Schmidt with `epsilon` added to each norm for ranks up to 2 and 16-bit dtypes, and by QR otherwise.
void orthogonalize(const at::Tensor& matrices, double epsilon);

}  // namespace accel::train
