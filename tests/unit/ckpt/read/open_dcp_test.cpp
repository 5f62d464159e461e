#include <gmock/gmock.h>

#include "ckpt/read/openers.hpp"
#include "opened.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::flat_split;
using testing::object_names;
using testing::read_tensor;
using testing::TempDir;
using testing::tensor_names;
using testing::Truth;
using testing::write_checkpoint;

TEST(OpenDcpTest, ListsInTheOrderOfTheStateDict) {
  const TempDir dir;
  const std::vector<Truth> truths = {Truth::make({"model", "z.w"}, DType::kFloat32, {3, 5}, 1),
                                     Truth::make({"model", "a"}, DType::kBFloat16, {7}, 2),
                                     Truth::make({"model", "none"}, DType::kInt8, {0, 2}, 3)};
  write_checkpoint(dir.path(), truths, flat_split(truths, 2), {{{"step"}, 7}});
  const auto checkpoint = open_dcp(dir.path());
  EXPECT_EQ(checkpoint->kind(), Kind::kDcp);
  EXPECT_EQ(checkpoint->directory(), dir.path());
  EXPECT_THAT(tensor_names(*checkpoint), ElementsAre("model.z.w", "model.a", "model.none"));
  EXPECT_EQ(checkpoint->tensors()[0].path, (StatePath{"model", "z.w"}));
  EXPECT_EQ(checkpoint->tensors()[2].pieces, 0U);
  for (const Truth& truth : truths) EXPECT_EQ(read_tensor(*checkpoint, fqn_of(truth.path)), truth.data);
  EXPECT_THAT(object_names(*checkpoint), ElementsAre("step"));
  EXPECT_EQ(*checkpoint->read_object(0).get<std::int64_t>(), 7);
}

TEST(OpenDcpTest, CoverageIsCheckedWithoutOpeningTheItems) {
  const TempDir dir;
  const std::vector<Truth> truths = {Truth::make({"w"}, DType::kFloat32, {4, 2}, 1)};
  write_checkpoint(dir.path(), truths, flat_split(truths, 2));
  std::filesystem::remove(dir / "__1_0.distcp");
  const auto checkpoint = open_dcp(dir.path());
  checkpoint->check_coverage(0);
  (void)error_of(ErrorKind::kMissing, [&] { (void)checkpoint->locate(0); });
}

}  // namespace
}  // namespace accel::ckpt
