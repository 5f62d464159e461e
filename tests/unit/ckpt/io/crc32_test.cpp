#include "ckpt/io/crc32.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;

TEST(Crc32Test, IsTheOneOfZip) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32({}), 0U);
}

RC_GTEST_PROP(Crc32PropertyTest, CombinesToTheCrcOfTheWhole, (const std::string& a, const std::string& b)) {
  const std::uint32_t whole = crc32(bytes_of(a + b));
  RC_ASSERT(crc32_combine(crc32(bytes_of(a)), crc32(bytes_of(b)), b.size()) == whole);
  RC_ASSERT(crc32(bytes_of(b), crc32(bytes_of(a))) == whole);
}

}  // namespace
}  // namespace accel::ckpt
