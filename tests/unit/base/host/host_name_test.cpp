#include "base/host/host_name.hpp"

#include <gtest/gtest.h>

namespace accel {
namespace {

TEST(HostNameTest, IsNotEmpty) { EXPECT_FALSE(host_name().empty()); }

}  // namespace
}  // namespace accel
