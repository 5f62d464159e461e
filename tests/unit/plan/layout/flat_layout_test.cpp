#include "plan/layout/flat_layout.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

namespace accel {
namespace {

ParameterSpec spec(const std::string& name, std::vector<std::int64_t> shape, std::size_t group = 0) {
  return {{name}, std::move(shape), group};
}

TEST(FlatLayoutTest, AlignsParametersAndShards) {
  const FlatLayout layout = make_flat_layout({spec("a", {3}), spec("b", {5, 7}), spec("c", {})}, 4, {1, 2});
  EXPECT_EQ(layout.parameters[0].offset, 0);
  EXPECT_EQ(layout.parameters[1].offset, 16);
  EXPECT_EQ(layout.parameters[2].offset, 64);
  EXPECT_EQ(layout.shard_numel, 48);  // 65 elements over 2 ranks are 33, rounded up to 64 bytes.
  EXPECT_EQ(layout.numel(), 96);
}

TEST(FlatLayoutTest, PutsTheParametersInTheOrderOfTheirGroups) {
  const FlatLayout layout = make_flat_layout({spec("bias", {20}, 1), spec("weight", {4, 5})}, 4, {1, 1});
  EXPECT_EQ(layout.parameters[0].spec.fqns[0], "weight");
  EXPECT_EQ(layout.parameters[0].spec.group, 0U);
  EXPECT_EQ(layout.parameters[1].offset, 32);
  EXPECT_EQ(layout.parameters[1].spec.group, 1U);
}

TEST(FlatLayoutTest, APieceMayStraddleRanks) {
  const FlatLayout layout = make_flat_layout({spec("w", {100})}, 4, {1, 3});
  ASSERT_EQ(layout.shard_numel, 48);
  const auto last = pieces_of(layout, 2);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].in_parameter.begin, 96);
  EXPECT_EQ(last[0].in_parameter.end, 100);
  EXPECT_EQ(last[0].shard_offset, 0);
}

TEST(FlatLayoutTest, RanksWithTheSameShardWriteAPortionOfItEach) {
  const FlatLayout layout = make_flat_layout({spec("w", {100})}, 4, {2, 2});
  // As over four ranks, with two neighbours together.
  ASSERT_EQ(layout.shard_numel, 64);
  const auto pieces = portion_pieces(layout, {1, 0});
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].in_parameter.begin, 32);
  EXPECT_EQ(pieces[0].in_parameter.end, 64);
  EXPECT_EQ(pieces[0].shard_offset, 32);
  EXPECT_EQ(portion_pieces(layout, {1, 1})[0].in_parameter.begin, 96);
}

TEST(FlatLayoutTest, ARankMayOwnNothing) {
  const FlatLayout layout = make_flat_layout({spec("w", {4})}, 4, {1, 4});
  EXPECT_EQ(pieces_of(layout, 0).size(), 1u);
  EXPECT_TRUE(pieces_of(layout, 3).empty());
}

TEST(FlatLayoutTest, EmptyParametersHaveNoPiece) {
  const FlatLayout layout = make_flat_layout({spec("a", {0, 3}), spec("b", {2})}, 4, {1, 1});
  const auto pieces = pieces_of(layout, 0);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].parameter, 1u);
}

TEST(FlatLayoutTest, PiecesAndGapsTileTheBuffer) {
  EXPECT_TRUE(rc::check("pieces of all ranks and gaps cover every element once", [] {
    const auto count = *rc::gen::inRange(1, 6);
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < count; ++i) {
      specs.push_back(spec(std::to_string(i),
                           {*rc::gen::inRange<std::int64_t>(0, 40), *rc::gen::inRange<std::int64_t>(1, 9)},
                           *rc::gen::arbitrary<bool>()));
    }
    const Mesh mesh{*rc::gen::inRange(1, 4), *rc::gen::inRange(1, 9)};
    const std::int64_t item_bytes = *rc::gen::element<std::int64_t>(1, 2, 4, 8);
    const FlatLayout layout = make_flat_layout(specs, item_bytes, mesh);
    RC_ASSERT(layout.shard_numel * item_bytes % 64 == 0);

    std::vector<int> covered(static_cast<std::size_t>(layout.numel()));
    const auto cover = [&](std::int64_t begin, std::int64_t size) {
      for (std::int64_t i = begin; i < begin + size; ++i) ++covered.at(static_cast<std::size_t>(i));
    };
    const auto cover_pieces = [&](const std::vector<ShardPiece>& pieces, int shard) {
      for (const ShardPiece& piece : pieces) {
        const std::int64_t flat = layout.parameters[piece.parameter].offset + piece.in_parameter.begin;
        RC_ASSERT(flat == layout.shard_range(shard).begin + piece.shard_offset);
        cover(flat, piece.in_parameter.size());
      }
    };
    for (int shard = 0; shard < mesh.shards(); ++shard) cover_pieces(pieces_of(layout, shard), shard);
    for (const ElementRange& gap : gaps_of(layout)) cover(gap.begin, gap.size());
    for (const int times : covered) RC_ASSERT(times == 1);
    RC_ASSERT(layout.portion_numel() * item_bytes % 64 == 0);
    for (int rank = 0; rank < mesh.size(); ++rank)
      cover_pieces(portion_pieces(layout, mesh.place_of(rank)), mesh.place_of(rank).shard);
    for (const ElementRange& gap : gaps_of(layout)) cover(gap.begin, gap.size());
    for (const int times : covered) RC_ASSERT(times == 2);
    for (const GroupRange& range : group_ranges(layout)) {
      cover(range.elements.begin, range.elements.size());
      std::int64_t in_shards = 0;
      for (int shard = 0; shard < mesh.shards(); ++shard) in_shards += range.in_shard(layout, shard).size();
      RC_ASSERT(in_shards == range.elements.size());
      for (std::size_t i = range.first; i < range.end; ++i)
        RC_ASSERT(layout.parameters[i].spec.group == range.group);
    }
    if (!layout.parameters.empty()) {
      for (const int times : covered) RC_ASSERT(times == 3);
    }
    std::size_t group = 0;
    for (const FlatParameter& parameter : layout.parameters) {
      RC_ASSERT(parameter.offset * item_bytes % 64 == 0);
      RC_ASSERT(group <= parameter.spec.group);
      group = parameter.spec.group;
    }
  }));
}

}  // namespace
}  // namespace accel
