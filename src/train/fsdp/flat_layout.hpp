#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accel::train {

/// One parameter as the model has it. Tied parameters are one entry with several names.
struct ParameterSpec {
  std::vector<std::string> fqns;  ///< Never empty; the first in module order is the parameter's own name.
  std::vector<std::int64_t> shape;
  bool decay = true;  ///< Whether weight decay applies.
};

/// A parameter's place in its flat buffer.
struct FlatParameter {
  ParameterSpec spec;
  std::int64_t numel = 0;
  std::int64_t offset = 0;  ///< Of its first element, in elements of the flat buffer.
};

/// A run of elements: [begin, end).
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// How the parameters of one unit, of one dtype, lie in one flat buffer that is cut into equal shards.
///
/// Parameters with weight decay come first, each group in module order; every parameter and every shard
/// starts on a 64-byte boundary; rank r owns elements [r * shard_numel, (r + 1) * shard_numel). A parameter
/// may straddle ranks.
struct FlatLayout {
  std::vector<FlatParameter> parameters;
  std::int64_t decay_end = 0;  ///< Elements before it may decay, elements from it on do not.
  std::int64_t shard_numel = 0;
  int world_size = 1;

  [[nodiscard]] std::int64_t numel() const { return shard_numel * world_size; }
  [[nodiscard]] ElementRange shard_range(int rank) const {
    return {rank * shard_numel, (rank + 1) * shard_numel};
  }
};

/// The part of one parameter that lies in one rank's shard.
struct ShardPiece {
  std::size_t parameter = 0;      ///< Index into FlatLayout::parameters.
  ElementRange in_parameter;      ///< In elements of the parameter, row-major.
  std::int64_t shard_offset = 0;  ///< Where it starts in the shard.
};

/// Lays out `parameters` of `item_bytes` each for `world_size` ranks.
FlatLayout make_flat_layout(std::vector<ParameterSpec> parameters, std::int64_t item_bytes, int world_size);

/// The pieces of parameters in the shard of `rank`, in order of their offset. A parameter of which the rank
/// owns nothing is left out.
std::vector<ShardPiece> pieces_of(const FlatLayout& layout, int rank);

/// The runs of the flat buffer that belong to no parameter (padding), in order.
std::vector<ElementRange> gaps_of(const FlatLayout& layout);

}  // namespace accel::train
