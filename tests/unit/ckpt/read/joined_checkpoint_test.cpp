#include "ckpt/read/joined_checkpoint.hpp"

#include <gmock/gmock.h>

#include "fake_checkpoint.hpp"
#include "opened.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::flat_split;
using ::testing::HasSubstr;
using testing::read_tensor;
using testing::TempDir;
using testing::tensor_names;
using testing::Truth;
using testing::write_checkpoint;

class JoinedCheckpointTest : public ::testing::Test {
 protected:
  std::unique_ptr<Checkpoint> write(const std::string& name, const std::vector<Truth>& truths) {
    write_checkpoint(dir_ / name, truths, flat_split(truths, 2));
    return open_checkpoint(dir_ / name);
  }

  TempDir dir_;
  Truth a_ = Truth::make({"a"}, DType::kFloat32, {5, 7}, 1);
  Truth b_ = Truth::make({"b"}, DType::kInt8, {3}, 2);
};

TEST_F(JoinedCheckpointTest, HasTheTensorsOfBoth) {
  const auto one = write("deep/er/one", {a_});
  const auto other = write("other", {b_});
  const auto joined = join(*one, *other);
  EXPECT_THAT(tensor_names(*joined), ElementsAre("a", "b"));
  EXPECT_EQ(joined->path(), one->path());
  EXPECT_EQ(joined->kind(), Kind::kDcp);
  EXPECT_EQ(joined->directory(), std::filesystem::canonical(dir_.path()));
  EXPECT_EQ(read_tensor(*joined, "a"), a_.data);
  EXPECT_EQ(read_tensor(*joined, "b"), b_.data);
}

TEST_F(JoinedCheckpointTest, OneDirectoryMayLieInTheOther) {
  const auto one = write("one", {a_});
  const auto inner = write("one/inner", {b_});
  EXPECT_EQ(read_tensor(*join(*one, *inner), "b"), b_.data);
  EXPECT_EQ(read_tensor(*join(*inner, *one), "a"), a_.data);
}

TEST_F(JoinedCheckpointTest, RefusesANameThatBothHave) {
  const auto one = write("one", {a_});
  const auto other = write("other", {a_});
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)join(*one, *other); }),
              HasSubstr("two entries that are called 'a'"));
}

TEST_F(JoinedCheckpointTest, AFileOutsideOfItsCheckpointIsStillRefused) {
  const auto one = write("one", {a_});
  testing::write_file(dir_ / "secret", b_.data);
  for (const std::string& name : {std::string("../secret"), (dir_ / "secret").string()}) {
    const std::vector<StoredTensor> stored{
        {"b", b_.dtype, b_.shape, {{name, 0, Box::whole(b_.shape), row_major_strides(b_.shape)}}}};
    testing::FakeCheckpoint other(dir_ / "other", {b_}, stored);
    std::filesystem::create_directories(dir_ / "other");
    const auto joined = join(*one, other);
    EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read_tensor(*joined, "b"); }),
                HasSubstr("which is not in it"));
  }
}

}  // namespace
}  // namespace accel::ckpt
