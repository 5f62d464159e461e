#include "ckpt/pickle/builder.hpp"

#include <gtest/gtest.h>

#include <array>

namespace accel::ckpt::pickle {
namespace {

constexpr std::array<Ref, 3> kParts = {Ref::boolean(true), Ref(), Ref::empty_tuple()};

TEST(PickleBuilderTest, OnesOwnPartIsAllThereIs) {
  Graph graph;
  GraphBuilder::reserve(graph, {4, 4, 8});
  GraphBuilder second(graph, {2, 2, 4}, {2, 2, 4}, false);
  EXPECT_EQ(second.add_node(Node::Kind::kTuple, kParts), Ref::node(2));
  EXPECT_EQ(second.add_atom(7), Ref::atom(2));
  EXPECT_EQ(graph.children[5], Ref());
  EXPECT_THROW((void)second.add_node(Node::Kind::kTuple, kParts), GraphBuilder::Full);
  EXPECT_EQ(second.add_node(Node{}), Ref::node(3));
  EXPECT_THROW((void)second.add_node(Node{}), GraphBuilder::Full);
  EXPECT_EQ(second.add_atom(8), Ref::atom(3));
  EXPECT_THROW((void)second.add_atom(9), GraphBuilder::Full);
}

TEST(PickleBuilderTest, OneThatIsAloneGrows) {
  Graph graph;
  GraphBuilder alone(graph, {}, {}, true);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(alone.add_node(Node::Kind::kTuple, kParts), Ref::node(i));
    ASSERT_EQ(alone.add_atom(i), Ref::atom(i));
  }
  EXPECT_EQ(graph.nodes.at(999).start, 2997U);
  EXPECT_EQ(graph.children.at(2999), Ref::empty_tuple());
  EXPECT_EQ(graph.atoms.at(999), 999U);
}

// Of a pickle of gigabytes that is made for it: nothing may be written where no array is.
TEST(PickleBuilderTest, APartBeyondAllReferencesHasNoRoom) {
  Graph graph;
  const ScanCounts beyond{Ref::kIndexLimit + std::size_t{1}, Ref::kIndexLimit + std::size_t{1},
                          UINT32_MAX + std::size_t{1}};
  GraphBuilder second(graph, beyond, {10, 10, 10}, false);
  EXPECT_THROW((void)second.add_node(Node{}), GraphBuilder::Full);
  EXPECT_THROW((void)second.add_atom(0), GraphBuilder::Full);
  EXPECT_THROW((void)second.add_node(Node::Kind::kTuple, kParts), GraphBuilder::Full);
}

}  // namespace
}  // namespace accel::ckpt::pickle
