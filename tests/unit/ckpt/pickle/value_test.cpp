#include "ckpt/pickle/value.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace accel::ckpt::pickle {
namespace {

TEST(PickleValueTest, ComparesTreesExactly) {
  EXPECT_TRUE(same(List{{1, "a"}}, List{{1, "a"}}));
  EXPECT_FALSE(same(List{{1, "a"}}, Tuple{{1, "a"}}));
  EXPECT_FALSE(same(1, true));
  EXPECT_FALSE(same(0.0, -0.0));
  EXPECT_TRUE(same(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(same(reduce(Global("a", "b"), {1}), reduce(Global("a", "b"), {1})));
  EXPECT_FALSE(same(reduce(Global("a", "b"), {1}), instance(Global("a", "b"), 1)));
}

TEST(PickleValueTest, GlobalsKeepModuleAndNameApart) {
  const Global global("torch.storage", "UntypedStorage");
  EXPECT_EQ(global.module(), "torch.storage");
  EXPECT_EQ(global.name(), "UntypedStorage");
  EXPECT_NE(Global("a.b", "c"), Global("a", "b.c"));
}

TEST(PickleValueTest, FindTakesTheLastAsPythonDoes) {
  const Pairs pairs{{"a", 1}, {2, 3}, {"a", 4}};
  EXPECT_EQ(*find(pairs, "a")->get<std::int64_t>(), 4);
  EXPECT_EQ(find(pairs, "b"), nullptr);
}

TEST(PickleValueTest, OrderedDictsAreMappings) {
  ObjectParts parts;
  parts.callable = Global("collections", "OrderedDict");
  parts.pairs = {{"a", 1}};
  const Value ordered{Object(parts)};
  ASSERT_NE(mapping_of(ordered), nullptr);
  EXPECT_EQ(mapping_of(ordered)->size(), 1U);
  EXPECT_EQ(mapping_of(List{}), nullptr);
}

TEST(PickleValueTest, DescribesForMessages) {
  EXPECT_EQ(describe(None{}), "None");
  EXPECT_EQ(describe("text"), "'text'");
  EXPECT_EQ(describe(0.25), "0.25");
  EXPECT_EQ(describe(Dict{{{"a", 1}}}), "a dict of 1");
  EXPECT_EQ(describe(reduce(Global("torch", "Size"), {})), "torch.Size(...)");
}

}  // namespace
}  // namespace accel::ckpt::pickle
