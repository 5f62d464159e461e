#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ranks/mesh.hpp"
#include "structure/tensor_part.hpp"

namespace accel {

/// One parameter as this rank's model has it. Tied parameters are one entry with several names.
struct ParameterSpec {
  std::vector<std::string> fqns;    ///< Never empty; the first in module order is the parameter's own name.
  std::vector<std::int64_t> shape;  ///< The shape of `part`, if tensor parallelism cuts the parameter.
  std::size_t group = 0;            ///< The index in OptimizerPlan::groups().
  std::optional<TensorPart> part = {};
  bool sums_gradient = false;  ///< ParameterInfo::sums_gradient.

  /// The shape of the whole parameter.
  [[nodiscard]] std::vector<std::int64_t> whole_shape() const;
};

/// A parameter's place in its flat buffer.
struct FlatParameter {
  ParameterSpec spec;
  std::int64_t numel = 0;
  std::int64_t offset = 0;  ///< Index of its first element in the flat buffer.
};

/// A run of elements: [begin, end).
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// How the parameters of one unit and one dtype lie in one flat buffer that is cut into equal shards.
///
/// The parameters come in the order of their optimizer groups, and those of a group in module order. Every
/// parameter and every shard starts on a 64-byte boundary. Shard s has the elements [s * shard_numel, (s + 1)
/// * shard_numel). A parameter may straddle shards. If several ranks hold each shard, the shard is cut into
/// as many equal portions, on 64-byte boundaries, too: each of these ranks writes one portion into a
/// checkpoint.
struct FlatLayout {
  std::vector<FlatParameter> parameters;
  std::int64_t shard_numel = 0;
  Mesh mesh;

  [[nodiscard]] std::int64_t numel() const { return shard_numel * mesh.shards(); }
  /// Whether tensor parallelism cuts the parameters, so that ranks along tp have different ones. A buffer has
  /// either such parameters or others.
  [[nodiscard]] bool is_tensor_cut() const {
    return !parameters.empty() && parameters.front().spec.part.has_value();
  }
  /// Whether every rank has all elements: with one rank, or for replicated parameters in any mesh.
  [[nodiscard]] bool is_replicated() const { return mesh.mean_size() == 1; }
  [[nodiscard]] ElementRange shard_range(int shard) const {
    return {shard * shard_numel, (shard + 1) * shard_numel};
  }
  [[nodiscard]] std::int64_t portion_numel() const { return shard_numel / mesh.replicas(); }
  [[nodiscard]] ElementRange portion_range(MeshPlace place) const {
    const std::int64_t begin = place.shard * shard_numel + place.replica * portion_numel();
    return {begin, begin + portion_numel()};
  }
};

/// The part of one parameter that lies in a shard, or in a portion of one.
struct ShardPiece {
  std::size_t parameter = 0;      ///< Index into FlatLayout::parameters.
  ElementRange in_parameter;      ///< The range counts elements of the parameter, row-major.
  std::int64_t shard_offset = 0;  ///< Index of its first element in the shard.
};

/// Lays out `parameters` of `item_bytes` each for the ranks of `mesh`. Every parameter, shard and portion
/// starts at a multiple of `block_elems` elements, too.
FlatLayout make_flat_layout(std::vector<ParameterSpec> parameters, std::int64_t item_bytes, const Mesh& mesh,
                            std::int64_t block_elems = 1);

/// The pieces of parameters in a shard, in the order of their offsets, without parameters that have no
/// element in it.
std::vector<ShardPiece> pieces_of(const FlatLayout& layout, int shard);
/// The pieces in the portion of the rank at `place`. Each element is in the portion of exactly one rank: of
/// ranks along tp with the same elements, the first has it.
std::vector<ShardPiece> portion_pieces(const FlatLayout& layout, MeshPlace place);

/// The parameters of one optimizer group, which are neighbours in a flat buffer.
struct GroupRange {
  std::size_t group = 0;  ///< The index in OptimizerPlan::groups().
  std::size_t first = 0;  ///< Index of the first parameter in FlatLayout::parameters.
  std::size_t end = 0;    ///< Index behind the last.
  ElementRange elements;  ///< In the flat buffer, with the padding behind the parameters.
  /// The part of `elements` that lies in a shard, as indices into the shard; empty if none does.
  [[nodiscard]] ElementRange in_shard(const FlatLayout& layout, int shard) const;
};

/// The groups of a layout in their order; together they cover the whole buffer.
std::vector<GroupRange> group_ranges(const FlatLayout& layout);

/// The runs of the flat buffer that belong to no parameter (padding), in order.
std::vector<ElementRange> gaps_of(const FlatLayout& layout);

}  // namespace accel
