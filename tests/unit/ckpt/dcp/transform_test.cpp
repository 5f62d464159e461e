#include "ckpt/dcp/transform.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

DcpFiles file_with(std::vector<std::string> transforms) {
  const std::vector<DcpFiles::Entry> entries{{"f", 0}};
  return DcpFiles(entries, {std::move(transforms)});
}

TEST(DcpTransformTest, AnyMinorVersionOfZstdIsKnown) {
  for (const char* name : {"stream.zstd/1", "stream.zstd/1.5"}) {
    const DcpFiles files = file_with({name});
    EXPECT_TRUE(has_known_transform({&files[0], 0, 1})) << name;
    EXPECT_TRUE(is_zstd({&files[0], 0, 1})) << name;
  }
  const DcpFiles plain = file_with({});
  EXPECT_TRUE(has_known_transform({&plain[0], 0, 1}));
  EXPECT_FALSE(is_zstd({&plain[0], 0, 1}));
}

TEST(DcpTransformTest, OthersAreRefused) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"stream.zstd/2"}, {"stream.zstd/10"}, {"stream.zstd/1", "stream.zstd/1"}}) {
    const DcpFiles files = file_with(names);
    EXPECT_FALSE(has_known_transform({&files[0], 0, 1}));
    EXPECT_THAT(error_of(ErrorKind::kFailure,
                         [&] {
                           (void)is_zstd({&files[0], 0, 1});
                         }),
                HasSubstr("accel only knows stream.zstd/1"));
  }
}

}  // namespace
}  // namespace accel::ckpt
