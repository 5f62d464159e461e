#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "plan/layout/optimizer_plan.hpp"
#include "train/c10d/group.hpp"
#include "train/optim/gradient_presence.hpp"
#include "train/optim/optimizer_state.hpp"
#include "train/optim/update_rules.hpp"

namespace accel::train {

/// torch.optim.Adafactor on sharded parameters: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with
/// Sublinear Memory Cost", 2018.
///
/// The means of the squared gradients over the rows and the columns of a matrix, and the norms of parameters
/// and updates, are of whole parameters. Each rank adds up the squares of its shard, and two all-reduces of a
/// step add those of all shards: one number for each row, each column and each parameter, and then one for
/// each parameter. The sums travel in float64. They are over the shards of all replicas, so that the replicas
/// have the same bits. Every rank has the means of all rows and columns, since they are few. An update is
/// computed in the place of its gradient.
class Adafactor : public CollectiveRule {
 public:
  /// Takes the states of its type among `states`; see collective_rules().
  Adafactor(const OptimizerPlan& plan, std::vector<OptimizerState>& states, int shard,
            const MeshGroups* groups);

  void step(double scale, const GradientPresence& presence) override;

 private:
  /// Elements of the matrices of a parameter that lie together.
  struct Block {
    ckpt::Box box;              ///< In [matrices, rows, columns].
    std::int64_t in_shard = 0;  ///< Index of its first element in the shard.
  };
  /// One parameter, and this rank's part of it.
  struct Item {
    const OptimizerState* state = nullptr;
    std::size_t parameter = 0;           ///< Index into the parameters of the buffer's layout.
    ElementRange in_shard;               ///< It may be empty.
    std::vector<std::int64_t> matrices;  ///< [matrices, rows, columns]; empty if the parameter has no rows.
    std::vector<Block> blocks;           ///< This rank's part of the matrices.
    std::int64_t rows_at = 0;            ///< Where its means begin in the tensors of the state.
    std::int64_t columns_at = 0;

    [[nodiscard]] std::int64_t rows() const { return matrices.empty() ? 0 : matrices[0] * matrices[1]; }
    [[nodiscard]] std::int64_t columns() const { return matrices.empty() ? 0 : matrices[0] * matrices[2]; }
    [[nodiscard]] at::Tensor of(const at::Tensor& shard) const {
      return shard.narrow(0, in_shard.begin, in_shard.size());
    }
  };
  /// Items whose shards lie on one device.
  struct Part {
    at::Device device;
    const MeshGroups* groups = nullptr;  ///< Null if the items are whole on each rank.
    std::vector<Item> items;
  };

  [[nodiscard]] std::vector<Item> items_of(const OptimizerState& state, int shard) const;
  [[nodiscard]] const OptimizerGroup& group_of(const Item& item) const {
    return plan_.groups()[item.state->range.group];
  }
  void step(const Part& part, double scale, const GradientPresence& presence) const;
  /// Changes the state, and turns the gradient of this rank's part into the update. `sums` has the sums of
  /// the squared gradients over all ranks: one for each row, then one for each column.
  void change_state(const Item& item, const at::Tensor& sums) const;
  /// `norm` and `update_norm` are of the whole parameter and of its whole update.
  void change_parameter(const Item& item, double scale, double norm, double update_norm) const;

  const OptimizerPlan& plan_;
  std::vector<Part> parts_;
};

}  // namespace accel::train
