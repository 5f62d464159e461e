#include "ckpt/pickle/builder.hpp"

#include <gmock/gmock.h>

#include <array>

#include "base/metadata_limit.hpp"
#include "helpers.hpp"

namespace accel::ckpt::pickle {
namespace {

using ckpt::testing::error_of;
using ::testing::HasSubstr;

constexpr std::array<Ref, 3> kParts = {Ref::boolean(true), Ref(), Ref::empty_tuple()};

TEST(PickleBuilderTest, GrowsBeyondWhatWasCounted) {
  Graph graph;
  GraphBuilder builder(graph, {});
  for (std::uint32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(builder.add_node(Node::Kind::kTuple, kParts), Ref::node(i));
    ASSERT_EQ(builder.add_atom(i), Ref::atom(i));
  }
  EXPECT_EQ(graph.nodes.at(999).start, 2997U);
  EXPECT_EQ(graph.children.at(2999), Ref::empty_tuple());
  EXPECT_EQ(graph.atoms.at(999), 999U);
}

TEST(PickleBuilderTest, RefusesToTakeMoreMemoryThanMetadataMay) {
  Graph graph;
  const ScanCounts counts{.values = metadata_limit() / sizeof(Ref) + 1};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { const GraphBuilder builder(graph, counts); }),
              HasSubstr("what the pickle builds"));
  EXPECT_TRUE(graph.children.empty());
}

}  // namespace
}  // namespace accel::ckpt::pickle
