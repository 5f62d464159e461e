#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "plan/layout/matrix_owners.hpp"
#include "plan/layout/optimizer_plan.hpp"
#include "train/c10d/group.hpp"
#include "train/optim/gradient_presence.hpp"
#include "train/optim/optimizer_state.hpp"
#include "train/optim/update_rules.hpp"

namespace accel::train {

/// torch.optim.Muon on sharded matrices: K. Jordan et al., "Muon: An optimizer for hidden layers in neural
/// networks", 2024.
///
/// The momentum is changed where the shards are. The update of a matrix needs all of it, so one rank of the
/// shard group owns each matrix (plan/layout/matrix_owners). An all-gather brings the momentum of a flat
/// buffer in bfloat16, in which Newton-Schulz computes, and a reduce-scatter takes the results to the shards:
/// each element has one summand that is not zero, so that nothing is rounded. The numbers are those of torch
/// on one process. A step takes two bytes for each element of the buffers of a bucket, and two more for the
/// matrices that the rank owns.
class Muon : public CollectiveRule {
 public:
  /// Takes the states of matrices among `states`. `shard` is the number of this rank's shard. `groups` may be
  /// null if nothing is sharded. All must outlive this.
  Muon(const OptimizerPlan& plan, std::vector<OptimizerState>& states, int shard, const MeshGroups* groups);

  void step(double scale, const GradientPresence& presence) override;

 private:
  /// The part of a matrix in this rank's shard.
  struct Piece {
    ElementRange in_shard;  ///< It may be empty.
    at::Tensor parameter;
    at::Tensor gradient;
    at::Tensor momentum;
  };
  struct Bucket {
    MatrixBucket plan;
    int owners = 1;
  };

  void add_buckets(const std::vector<OptimizerState*>& states, int owners);
  [[nodiscard]] const OptimizerState& state_of(const OwnedMatrix& matrix) const {
    return *states_[matrix.group];
  }
  [[nodiscard]] const FlatParameter& parameter_of(const OwnedMatrix& matrix) const {
    return state_of(matrix).buffer->layout().parameters[matrix.parameter];
  }
  [[nodiscard]] const OptimizerGroup& group_of(const OwnedMatrix& matrix) const;
  [[nodiscard]] Piece piece_of(const OwnedMatrix& matrix) const;
  void step(const Bucket& bucket, double scale, const GradientPresence& presence);
  void change_momentum(const OwnedMatrix& matrix, const at::Tensor& own) const;
  void change_parameter(const OwnedMatrix& matrix, double scale, const at::Tensor& own) const;

  const OptimizerPlan& plan_;
  std::vector<OptimizerState*> states_;
  std::vector<Bucket> buckets_;
  int shard_;
  Group* shards_;
};

/// The entries of torch's param_group.
std::vector<std::pair<const char*, ckpt::pickle::Value>> muon_param_group(const OptimizerGroup& group);

}  // namespace accel::train
