#include "ckpt/dcp_read.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::Assignment;
using testing::error_of;
using testing::expect_ok_or_error;
using testing::flat_split;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;
using testing::write_file;

std::string read_elements(DcpReader& reader, const std::string& fqn, std::int64_t begin, std::int64_t end) {
  const DcpTensor& tensor = reader.tensor(fqn);
  std::string out(static_cast<std::size_t>(end - begin) * item_bytes(tensor.dtype), '?');
  reader.read_range(tensor, begin, end, std::as_writable_bytes(std::span(out)));
  return out;
}

RC_GTEST_PROP(DcpReadPropertyTest, AnyRangeOfAnySplitIsWhatWasWritten, ()) {
  const TempDir dir;
  const Dims shape = *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 6)));
  const DType dtype = *rc::gen::element(DType::kInt8, DType::kBFloat16, DType::kFloat32, DType::kComplex128);
  const Truth truth = Truth::make({"model", "w"}, dtype, shape, 7);
  write_checkpoint(dir.path(), {truth}, flat_split({truth}, *rc::gen::inRange<std::size_t>(1, 6)));
  DcpReader reader(dir.path());
  const std::int64_t numel = checked_numel(shape);
  const auto begin = *rc::gen::inRange<std::int64_t>(0, numel + 1);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, numel + 1);
  const std::uint64_t item = item_bytes(dtype);
  RC_ASSERT(read_elements(reader, "model.w", begin, end) ==
            truth.data.substr(static_cast<std::size_t>(begin) * item,
                              static_cast<std::size_t>(end - begin) * item));
}

class DcpReadTest : public ::testing::Test {
 protected:
  DcpReadTest() {
    plans_ = write_checkpoint(dir_.path(), {truth_}, flat_split({truth_}, 2), {{{"lr"}, 0.5}});
  }

  std::string rejection(ErrorKind kind) {
    return error_of(kind, [&] { read_whole(); });
  }
  void read_whole() {
    DcpReader reader(dir_.path());
    (void)read_elements(reader, "model.w", 0, 15);
    (void)reader.read_object(reader.metadata().objects.at(0));
  }

  TempDir dir_;
  Truth truth_ = Truth::make({"model", "w"}, DType::kFloat32, {3, 5}, 1);
  std::vector<DcpRankPlan> plans_;
};

TEST_F(DcpReadTest, FindsByName) {
  DcpReader reader(dir_.path());
  EXPECT_EQ(reader.directory(), dir_.path());
  EXPECT_NE(reader.find_tensor("model.w"), nullptr);
  EXPECT_EQ(reader.find_tensor("model"), nullptr);
  EXPECT_EQ(*reader.read_object(*reader.find_object("lr")).get<double>(), 0.5);
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)reader.tensor("model.v"); }),
              HasSubstr("no tensor 'model.v'"));
}

TEST_F(DcpReadTest, OpensOnlyTheChunksThatARangeNeeds) {
  std::filesystem::remove(dir_ / "__1_0.distcp");
  DcpReader reader(dir_.path());
  EXPECT_EQ(read_elements(reader, "model.w", 0, 7), truth_.data.substr(0, 28));
  (void)error_of(ErrorKind::kMissing, [&] { (void)read_elements(reader, "model.w", 0, 8); });
}

TEST_F(DcpReadTest, WithoutMetadataItIsMissing) {
  std::filesystem::remove(dir_ / ".metadata");
  EXPECT_THAT(rejection(ErrorKind::kMissing), HasSubstr("has no .metadata"));
}

TEST_F(DcpReadTest, ATruncatedFileIsCorruptAndNamed) {
  const std::string file = read_file(dir_ / "__1_0.distcp");
  write_file(dir_ / "__1_0.distcp", file.substr(0, file.size() - 1));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt),
              ::testing::AllOf(HasSubstr("model.w"), HasSubstr("__1_0.distcp")));
}

TEST_F(DcpReadTest, FilesOfAnotherCheckpointAreNoticed) {
  const TempDir other;
  const Truth wider = Truth::make({"model", "w"}, DType::kFloat64, {3, 5}, 1);
  write_checkpoint(other.path(), {wider}, flat_split({wider}, 2), {{{"lr"}, 0.5}});
  std::filesystem::copy_file(other / "__0_0.distcp", dir_ / "__0_0.distcp",
                             std::filesystem::copy_options::overwrite_existing);
  (void)rejection(ErrorKind::kCorrupt);
}

TEST_F(DcpReadTest, EveryTruncationIsAnError) {
  const std::string file = read_file(dir_ / "__0_0.distcp");
  for (std::size_t size = 0; size < file.size(); size += 7) {
    write_file(dir_ / "__0_0.distcp", file.substr(0, size));
    EXPECT_THROW(read_whole(), Error) << size;
  }
}

TEST_F(DcpReadTest, EveryFlippedByteIsReadOrRejected) {
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
