#include "ranks/collective_order.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace accel {
namespace {

using Kind = CollectiveOrder::Kind;

double of(CollectiveOrder& order, const std::vector<std::string>& units, Kind kind = Kind::kReduce) {
  for (const std::string& unit : units) order.note(kind, unit);
  return order.take();
}

TEST(CollectiveOrderTest, IsEqualForEqualOrdersInEveryStep) {
  CollectiveOrder a;
  CollectiveOrder b;
  for (int step = 0; step < 3; ++step)
    EXPECT_EQ(of(a, {"layers.1", "layers.0", ""}), of(b, {"layers.1", "layers.0", ""}));
}

TEST(CollectiveOrderTest, DiffersIfOrderUnitOrKindDoes) {
  const auto one = [](const std::vector<std::string>& units, Kind kind = Kind::kReduce) {
    CollectiveOrder order;
    return of(order, units, kind);
  };
  const double number = one({"a", "b"});
  EXPECT_NE(number, one({"b", "a"}));
  EXPECT_NE(number, one({"a"}));
  EXPECT_NE(number, one({"a", "c"}));
  EXPECT_NE(number, one({"a", "b"}, Kind::kGather));
  EXPECT_NE(number, one({"ab"}));
}

// An accident does not repeat itself.
TEST(CollectiveOrderTest, TwoOrdersDifferInMostSteps) {
  CollectiveOrder a;
  CollectiveOrder b;
  int equal = 0;
  for (int step = 0; step < 4096; ++step) equal += of(a, {"x", "y"}) == of(b, {"y", "x"}) ? 1 : 0;
  EXPECT_LT(equal, 20);
}

TEST(CollectiveOrderTest, EqualNumbersAreToldFromTheirSums) {
  EXPECT_TRUE(CollectiveOrder::are_equal(3 * 4095.0, 3 * 4095.0 * 4095.0, 3));
  EXPECT_TRUE(CollectiveOrder::are_equal(0, 0, 5));
  EXPECT_FALSE(
      CollectiveOrder::are_equal(4095.0 * 16383 + 4094, 4095.0 * 4095 * 16383 + 4094.0 * 4094, 16384));
  EXPECT_FALSE(CollectiveOrder::are_equal(7 + 9, 49 + 81, 2));
}

}  // namespace
}  // namespace accel
