#include "base/files/fault_point.hpp"

#include <gtest/gtest.h>

namespace accel::fault {
namespace {

// The tests are compiled without ACCEL_FAULTS, as src/base is in a build without fault points.
TEST(FaultPointTest, IsTheCallAloneInABuildWithoutFaults) {
  const Scope scope("fail@1,kill@2");
  EXPECT_EQ(guard(Operation::kRename, "a", [] { return 5; }), 5);
  EXPECT_EQ(transfer(Operation::kWrite, "a", 7, [](std::size_t count) { return count; }), 7u);
  EXPECT_TRUE(scope.points().empty());
}

}  // namespace
}  // namespace accel::fault
