#include "ckpt/tensor_reader.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

class TensorReaderTest : public ::testing::Test {
 protected:
  TensorReaderTest() {
    write_file(dir_ / "left", "abgh");
    write_file(dir_ / "right", "..cidj");  // Transposed, and behind something else.
  }

  std::string read(std::int64_t begin, std::int64_t end) {
    std::string out(static_cast<std::size_t>(end - begin), '?');
    reader_.read_range(tensor_, begin, end, std::as_writable_bytes(std::span(out)));
    return out;
  }

  TempDir dir_;
  TensorReader reader_{dir_.path()};
  StoredTensor tensor_{"t",
                       DType::kUInt8,
                       {2, 4},
                       {{"left", 0, {{0, 0}, {2, 2}}, {2, 1}}, {"right", 2, {{0, 2}, {2, 2}}, {1, 2}}}};
};

TEST_F(TensorReaderTest, GathersFromFilesAndStrides) {
  EXPECT_EQ(read(0, 8), "abcdghij");
  EXPECT_EQ(read(1, 6), "bcdgh");
  EXPECT_EQ(read(3, 4), "d");
  EXPECT_EQ(read(8, 8), "");
}

TEST_F(TensorReaderTest, AHoleInTheRangeIsAnError) {
  tensor_.extents.pop_back();
  EXPECT_EQ(read(4, 6), "gh");
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read(1, 6); }),
              HasSubstr("holds 3 of the elements 1 to 6"));
}

TEST_F(TensorReaderTest, RejectsARangeBeyondTheTensor) {
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)read(5, 9); });
}

TEST_F(TensorReaderTest, RejectsABufferOfAnotherSize) {
  std::byte out[3];
  EXPECT_THROW(reader_.read_range(tensor_, 0, 4, out), Error);
}

}  // namespace
}  // namespace accel::ckpt
