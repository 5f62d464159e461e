#include "plan/flat_layout.hpp"

#include <algorithm>
#include <utility>

#include "base/checked.hpp"

namespace accel {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

std::vector<ShardPiece> pieces_in(const FlatLayout& layout, const ElementRange& range) {
  std::vector<ShardPiece> pieces;
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const FlatParameter& parameter = layout.parameters[i];
    const std::int64_t begin = std::max(range.begin, parameter.offset);
    const std::int64_t end = std::min(range.end, parameter.offset + parameter.numel);
    if (begin >= end) continue;
    pieces.push_back({i, {begin - parameter.offset, end - parameter.offset}, begin % layout.shard_numel});
  }
  return pieces;
}

}  // namespace

FlatLayout make_flat_layout(std::vector<ParameterSpec> parameters, std::int64_t item_bytes,
                            const Mesh& mesh) {
  const std::int64_t alignment = std::max<std::int64_t>(1, kAlignmentBytes / item_bytes);
  std::stable_partition(parameters.begin(), parameters.end(), [](const ParameterSpec& p) { return p.decay; });

  FlatLayout layout;
  layout.mesh = mesh;
  std::int64_t end = 0;
  for (ParameterSpec& spec : parameters) {
    FlatParameter flat;
    flat.numel = checked_numel(spec.shape);
    flat.offset = round_up(end, alignment);
    flat.spec = std::move(spec);
    end = checked_add(flat.offset, flat.numel);
    layout.parameters.push_back(std::move(flat));
  }
  const std::int64_t portion = round_up((end + mesh.data_size() - 1) / mesh.data_size(), alignment);
  layout.shard_numel = checked_mul(portion, std::int64_t{mesh.replicas()});
  return layout;
}

std::vector<ShardPiece> pieces_of(const FlatLayout& layout, int shard) {
  return pieces_in(layout, layout.shard_range(shard));
}

std::vector<ShardPiece> portion_pieces(const FlatLayout& layout, MeshPlace place) {
  return pieces_in(layout, layout.portion_range(place));
}

std::vector<ElementRange> gaps_of(const FlatLayout& layout) {
  std::vector<ElementRange> gaps;
  std::int64_t end = 0;
  for (const FlatParameter& parameter : layout.parameters) {
    if (parameter.offset > end) gaps.push_back({end, parameter.offset});
    end = parameter.offset + parameter.numel;
  }
  if (layout.numel() > end) gaps.push_back({end, layout.numel()});
  return gaps;
}

}  // namespace accel
