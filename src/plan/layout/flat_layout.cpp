#include "plan/layout/flat_layout.hpp"

#include <algorithm>
#include <numeric>
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

std::vector<std::int64_t> ParameterSpec::whole_shape() const {
  std::vector<std::int64_t> whole = shape;
  if (part) whole.at(part->dim) = part->whole;
  return whole;
}

FlatLayout make_flat_layout(std::vector<ParameterSpec> parameters, std::int64_t item_bytes, const Mesh& mesh,
                            std::int64_t block_elems) {
  const std::int64_t alignment =
      std::lcm(std::max<std::int64_t>(1, kAlignmentBytes / item_bytes), block_elems);
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const ParameterSpec& a, const ParameterSpec& b) { return a.group < b.group; });

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
  const std::int64_t portion = round_up((end + mesh.mean_size() - 1) / mesh.mean_size(), alignment);
  layout.shard_numel = checked_mul(portion, std::int64_t{mesh.replicas()});
  return layout;
}

std::vector<ShardPiece> pieces_of(const FlatLayout& layout, int shard) {
  return pieces_in(layout, layout.shard_range(shard));
}

std::vector<ShardPiece> portion_pieces(const FlatLayout& layout, MeshPlace place) {
  if (place.tp != 0 && !layout.is_tensor_cut()) return {};
  return pieces_in(layout, layout.portion_range(place));
}

ElementRange GroupRange::in_shard(const FlatLayout& layout, int shard) const {
  const ElementRange range = layout.shard_range(shard);
  return {std::clamp(elements.begin - range.begin, std::int64_t{0}, range.size()),
          std::clamp(elements.end - range.begin, std::int64_t{0}, range.size())};
}

std::vector<GroupRange> group_ranges(const FlatLayout& layout) {
  std::vector<GroupRange> ranges;
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const FlatParameter& parameter = layout.parameters[i];
    if (ranges.empty() || ranges.back().group != parameter.spec.group) {
      if (!ranges.empty()) ranges.back().elements.end = parameter.offset;
      ranges.push_back({parameter.spec.group, i, i, {parameter.offset, layout.numel()}});
    }
    ranges.back().end = i + 1;
  }
  return ranges;
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
