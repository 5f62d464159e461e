#include "ckpt/tensor/tensor_reader.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;

using ::testing::ElementsAre;

// A FileRun as text.
std::vector<std::string> texts(const std::optional<std::vector<FileRun>>& runs) {
  if (!runs) return {"none"};
  std::vector<std::string> texts;
  for (const FileRun& run : *runs) {
    texts.push_back(*run.file + " " + std::to_string(run.offset) + " -> " + std::to_string(run.target) + " " +
                    std::to_string(run.bytes));
  }
  return texts;
}

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

// The pieces have as many elements as the tensor: two of them are there twice, and two are missing.
TEST_F(TensorReaderTest, PiecesThatOverlapAreAnErrorAlsoWhereTheirElementsAddUp) {
  tensor_.extents.back().box = {{0, 1}, {2, 2}};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read(0, 8); }),
              AllOf(HasSubstr("'t'"), HasSubstr("overlap")));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read(4, 8); }), HasSubstr("overlap"));
  EXPECT_EQ(read(4, 5), "g");
}

TEST_F(TensorReaderTest, RejectsARangeBeyondTheTensor) {
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)read(5, 9); });
}

TEST_F(TensorReaderTest, RejectsABufferOfAnotherSize) {
  std::byte out[3];
  EXPECT_THROW(reader_.read_range(tensor_, 0, 4, out), Error);
}

TEST_F(TensorReaderTest, ReadsPartsOfABox) {
  const Box middle{{0, 1}, {2, 2}};                             // bc
  const auto box = [&](std::int64_t begin, std::int64_t end) {  // hi
    std::string out(static_cast<std::size_t>(end - begin), '?');
    reader_.read_box(tensor_, middle, begin, end, std::as_writable_bytes(std::span(out)));
    return out;
  };
  EXPECT_EQ(box(0, 4), "bchi");
  EXPECT_EQ(box(1, 3), "ch");
  EXPECT_EQ(box(4, 4), "");
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)box(0, 5); });
  tensor_.extents.pop_back();
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)box(0, 4); }),
              HasSubstr("holds 2 of the elements 0 to 4 of the box [0:2, 1:3]"));
}

TEST_F(TensorReaderTest, RejectsABoxBeyondTheTensor) {
  std::byte out[4];
  EXPECT_THROW(reader_.read_box(tensor_, {{1, 1}, {2, 2}}, 0, 4, out), Error);
}

// There are so many pieces that an index is made of them. It must not be used for another tensor.
TEST_F(TensorReaderTest, ManyPiecesOfTensorsThatComeAfterEachOtherInMemory) {
  std::string letters;
  for (int i = 0; i < 40; ++i) letters += static_cast<char>('A' + i);
  write_file(dir_ / "letters", letters);
  tensor_.shape = {40};
  tensor_.extents.clear();
  for (std::int64_t i = 0; i < 40; ++i) {
    tensor_.extents.push_back({"letters", static_cast<std::uint64_t>(i), {{i}, {1}}, {1}});
  }
  EXPECT_EQ(read(0, 40), letters);
  EXPECT_EQ(read(7, 9), letters.substr(7, 2));
  for (std::int64_t i = 0; i < 40; ++i) tensor_.extents[static_cast<std::size_t>(i)].box.offsets = {39 - i};
  EXPECT_EQ(read(3, 5), letters.substr(36, 1) + letters.substr(35, 1));
}

// The tensor has the address and the number of pieces of the indexed one, but a dimension less.
TEST_F(TensorReaderTest, TheNextTensorInMemoryMayHaveFewerDimensions) {
  write_file(dir_ / "letters", testing::pattern(40, 1));
  tensor_.shape = {1, 40};
  tensor_.extents.clear();
  for (std::int64_t i = 0; i < 40; ++i) {
    tensor_.extents.push_back({"letters", static_cast<std::uint64_t>(i), {{0, i}, {1, 1}}, {40, 1}});
  }
  EXPECT_EQ(read(0, 40), testing::pattern(40, 1));
  tensor_.shape = {40};
  for (std::int64_t i = 0; i < 40; ++i) {
    tensor_.extents[static_cast<std::size_t>(i)] = {
        "letters", static_cast<std::uint64_t>(i), {{i}, {1}}, {1}};
  }
  EXPECT_EQ(read(0, 40), testing::pattern(40, 1));
}

TEST_F(TensorReaderTest, RunsOfWhatLiesTogether) {
  const Box rows{{0, 0}, {2, 2}};
  EXPECT_THAT(texts(reader_.runs_of(tensor_, rows, 0, 4)), ElementsAre("left 0 -> 0 4"));
  EXPECT_THAT(texts(reader_.runs_of(tensor_, rows, 1, 3)), ElementsAre("left 1 -> 0 1", "left 2 -> 1 1"));
  EXPECT_THAT(texts(reader_.runs_of(tensor_, rows, 2, 2)), ElementsAre());
  EXPECT_THAT(texts(reader_.runs_of(tensor_, Box::whole({2, 4}), 0, 8)), ElementsAre("none"));
  EXPECT_THAT(texts(reader_.runs_of(tensor_, {{0, 2}, {1, 2}}, 0, 2)), ElementsAre("none"));  // Transposed.
  EXPECT_THAT(texts(reader_.runs_of(tensor_, {{0, 2}, {1, 2}}, 1, 2)), ElementsAre("right 4 -> 0 1"));
  EXPECT_THAT(texts(reader_.runs_of(tensor_, {{0, 1}, {1, 2}}, 0, 2)),
              ElementsAre("left 1 -> 0 1", "right 2 -> 1 1"));
}

TEST_F(TensorReaderTest, RunsOfPackedPiecesAreNone) {
  tensor_.extents[0].packed = PackedRange{0, 4};
  EXPECT_EQ(reader_.runs_of(tensor_, {{0, 0}, {2, 2}}, 0, 4), std::nullopt);
  EXPECT_NE(reader_.runs_of(tensor_, {{0, 2}, {1, 1}}, 0, 1), std::nullopt);
}

TEST_F(TensorReaderTest, RunsOfAHoleAreAnError) {
  tensor_.extents.pop_back();
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [&] {
                         (void)reader_.runs_of(tensor_, Box::whole({2, 4}), 0, 8);
                       }),
              HasSubstr("holds 4 of the elements 0 to 8"));
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)reader_.runs_of(tensor_, {{1, 1}, {2, 2}}, 0, 4); });
}

// If there are runs, they have the bytes that read_box gives.
RC_GTEST_PROP(TensorReaderPropertyTest, RunsAreWhatIsRead, ()) {
  const Dims shape = *rc::gen::resize(3, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(1, 6)));
  const testing::Truth truth = testing::Truth::make({"t"}, DType::kInt16, shape, 3);
  const TempDir dir;
  testing::Scatter scatter(dir.path(), *rc::gen::arbitrary<std::uint32_t>());
  const StoredTensor stored = scatter.scatter(truth, *rc::gen::inRange<std::size_t>(0, 3));
  scatter.write();
  TensorReader reader(dir.path());
  const std::int64_t numel = checked_numel(shape);
  const auto begin = *rc::gen::inRange<std::int64_t>(0, numel + 1);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, numel + 1);
  const std::optional<std::vector<FileRun>> runs = reader.runs_of(stored, Box::whole(shape), begin, end);
  RC_CLASSIFY(runs.has_value());
  if (!runs) return;
  std::string found(static_cast<std::size_t>(end - begin) * 2, '?');
  std::uint64_t bytes = 0;
  for (const FileRun& run : *runs) {
    found.replace(run.target, run.bytes, testing::read_file(dir / *run.file), run.offset, run.bytes);
    bytes += run.bytes;
  }
  RC_ASSERT(bytes == found.size());
  RC_ASSERT(found == truth.data.substr(static_cast<std::size_t>(begin) * 2, found.size()));
}

RC_GTEST_PROP(TensorReaderPropertyTest, AnyPartOfAnyBox, ()) {
  const Dims shape = *rc::gen::resize(3, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(1, 7)));
  const testing::Truth truth = testing::Truth::make({"t"}, DType::kInt16, shape, 3);
  const std::int64_t numel = checked_numel(shape);
  const auto pieces = *rc::gen::inRange<std::int64_t>(1, 30);
  const TempDir dir;
  write_file(dir / "data", truth.data);
  StoredTensor tensor{"t", DType::kInt16, shape, {}};
  for (std::int64_t p = 0; p < pieces; ++p) {
    for (const Box& box : boxes_of_range(shape, numel * p / pieces, numel * (p + 1) / pieces)) {
      const auto at = static_cast<std::uint64_t>(flat_index(shape, box.offsets)) * 2;
      tensor.extents.push_back({"data", at, box, row_major_strides(box.sizes)});
    }
  }
  Box box;
  for (const std::int64_t size : shape) {
    box.offsets.push_back(*rc::gen::inRange<std::int64_t>(0, size + 1));
    box.sizes.push_back(*rc::gen::inRange<std::int64_t>(0, size - box.offsets.back() + 1));
  }
  const auto begin = *rc::gen::inRange<std::int64_t>(0, box.numel() + 1);
  const auto end = *rc::gen::inRange<std::int64_t>(begin, box.numel() + 1);
  std::string out(static_cast<std::size_t>(end - begin) * 2, '?');
  TensorReader reader(dir.path());
  reader.read_box(tensor, box, begin, end, std::as_writable_bytes(std::span(out)));
  RC_ASSERT(out == truth.part(box).substr(static_cast<std::size_t>(begin) * 2, out.size()));
}

}  // namespace
}  // namespace accel::ckpt
