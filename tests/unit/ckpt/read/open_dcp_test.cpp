#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "ckpt/read/openers.hpp"
#include "opened.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_ok_or_error;
using testing::flat_split;
using ::testing::HasSubstr;
using testing::object_names;
using testing::read_file;
using testing::read_tensor;
using testing::TempDir;
using testing::tensor_names;
using testing::Truth;
using testing::write_checkpoint;
using testing::write_file;

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
  EXPECT_EQ(checkpoint->tensors()[0].pieces, 4U);
  EXPECT_EQ(checkpoint->tensors()[2].pieces, 1U) << "a tensor without elements has one empty chunk";
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

TEST(OpenDcpTest, FilesAreKnownWithoutOpeningThem) {
  const TempDir dir;
  const std::vector<Truth> truths = {Truth::make({"w"}, DType::kFloat32, {4, 2}, 1)};
  write_checkpoint(dir.path(), truths, flat_split(truths, 2), {{{"step"}, 7}});
  for (const char* name : {"__0_0.distcp", "__1_0.distcp"}) std::filesystem::remove(dir / name);
  const auto checkpoint = open_dcp(dir.path());
  EXPECT_EQ(checkpoint->version(), "1.0.0");
  EXPECT_THAT(checkpoint->files_of(0).pieces, ElementsAre("__0_0.distcp", "__1_0.distcp"));
  EXPECT_THAT(checkpoint->files_of(0).copies, ElementsAre());
  EXPECT_EQ(checkpoint->file_of_object(0), "__0_0.distcp");
}

TEST(OpenDcpTest, ChunksThatOverlapAreAnErrorEachTime) {
  const TempDir dir;
  const std::vector<Truth> truths = {Truth::make({"w"}, DType::kFloat32, {4, 2}, 1)};
  write_checkpoint(dir.path(), truths, flat_split(truths, 2));
  std::string metadata = read_file(dir / ".metadata");
  // The second chunk begins in row 2, and now in row 1.
  const std::string before = {'K', 2, 'K', 0};
  for (std::size_t at = metadata.find(before); at != std::string::npos; at = metadata.find(before))
    metadata[at + 1] = 1;
  write_file(dir / ".metadata", metadata);
  const auto checkpoint = open_dcp(dir.path());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)checkpoint->locate(0); }), HasSubstr("overlap"));
  }
}

RC_GTEST_PROP(OpenDcpPropertyTest, AnyRangeOfAnySplitIsWhatWasWritten, ()) {
  const TempDir dir;
  const Dims shape = *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 6)));
  const DType dtype = *rc::gen::element(DType::kInt8, DType::kBFloat16, DType::kFloat32, DType::kComplex128);
  const Truth truth = Truth::make({"model", "w"}, dtype, shape, 7);
  write_checkpoint(dir.path(), {truth}, flat_split({truth}, *rc::gen::inRange<std::size_t>(1, 6)));
  const auto checkpoint = open_dcp(dir.path());
  const std::int64_t numel = checked_numel(shape);
  const auto begin = *rc::gen::inRange<std::int64_t>(0, numel + 1);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, numel + 1);
  const std::uint64_t item = item_bytes(dtype);
  std::string bytes(static_cast<std::size_t>(end - begin) * item, '?');
  TensorReader(dir.path())
      .read_range(checkpoint->locate(0), begin, end, std::as_writable_bytes(std::span(bytes)));
  RC_ASSERT(bytes == truth.data.substr(static_cast<std::size_t>(begin) * item,
                                       static_cast<std::size_t>(end - begin) * item));
}

class BrokenDcpTest : public ::testing::Test {
 protected:
  BrokenDcpTest() { write_checkpoint(dir_.path(), {truth_}, flat_split({truth_}, 2), {{{"lr"}, 0.5}}); }

  std::string rejection(ErrorKind kind) {
    return error_of(kind, [&] { read_whole(); });
  }
  void read_whole() {
    const auto checkpoint = open_dcp(dir_.path());
    for (const TensorEntry& tensor : checkpoint->tensors()) (void)read_tensor(*checkpoint, tensor.name);
    (void)checkpoint->read_object(0);
  }

  TempDir dir_;
  Truth truth_ = Truth::make({"model", "w"}, DType::kFloat32, {3, 5}, 1);
};

TEST_F(BrokenDcpTest, WithoutMetadataItIsMissing) {
  std::filesystem::remove(dir_ / ".metadata");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("has no .metadata"));
}

TEST_F(BrokenDcpTest, ATruncatedFileIsCorruptAndNamed) {
  const std::string file = read_file(dir_ / "__1_0.distcp");
  write_file(dir_ / "__1_0.distcp", file.substr(0, file.size() - 1));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt),
              ::testing::AllOf(HasSubstr("model.w"), HasSubstr("__1_0.distcp")));
}

TEST_F(BrokenDcpTest, FilesOfAnotherCheckpointAreNoticed) {
  const TempDir other;
  const Truth wider = Truth::make({"model", "w"}, DType::kFloat64, {3, 5}, 1);
  write_checkpoint(other.path(), {wider}, flat_split({wider}, 2), {{{"lr"}, 0.5}});
  std::filesystem::copy_file(other / "__0_0.distcp", dir_ / "__0_0.distcp",
                             std::filesystem::copy_options::overwrite_existing);
  (void)rejection(ErrorKind::kCorrupt);
}

TEST_F(BrokenDcpTest, EveryTruncationIsAnError) {
  const std::string file = read_file(dir_ / "__0_0.distcp");
  for (std::size_t size = 0; size < file.size(); size += 7) {
    write_file(dir_ / "__0_0.distcp", file.substr(0, size));
    EXPECT_THROW(read_whole(), Error) << size;
  }
}

TEST_F(BrokenDcpTest, EveryFlippedByteIsReadOrRejected) {
  for (const char* name : {"__0_0.distcp", ".metadata"}) {
    const std::string file = read_file(dir_ / name);
    for (std::size_t byte = 0; byte < file.size(); ++byte) {
      std::string broken = file;
      broken[byte] = static_cast<char>(static_cast<unsigned char>(broken[byte]) ^ (1U << (byte % 8)));
      write_file(dir_ / name, broken);
      expect_ok_or_error([&] { read_whole(); });
    }
    write_file(dir_ / name, file);
  }
  EXPECT_NO_THROW(read_whole());
}

}  // namespace
}  // namespace accel::ckpt
