#include "ckpt/remove_checkpoint.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::flat_split;
using testing::names_in;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;

TEST(RemoveCheckpointTest, RemovesOnlyTheOne) {
  const TempDir dir;
  const std::vector<Truth> truths{Truth::make({"model", "a"}, DType::kFloat32, {2}, 1)};
  for (const char* name : {"a", "b"}) write_checkpoint(dir / name, truths, flat_split(truths, 2));
  remove_checkpoint(*open_checkpoint(dir / "a"));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("b"));
}

}  // namespace
}  // namespace accel::ckpt
