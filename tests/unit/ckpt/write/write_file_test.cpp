#include "ckpt/write/write_file.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "ckpt/io/crc32.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/zip/index.hpp"
#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::FakeCheckpoint;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TempDir;
using testing::Truth;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

WriteLimits least(unsigned threads) { return {kLeastWriteMemory * threads, threads}; }

std::string written(Checkpoint& source, const OutputFile& plan, const std::filesystem::path& path,
                    const WriteLimits& limits) {
  check_plan({{plan}});
  std::filesystem::remove(path);
  Progress progress("", plan.bytes, Progress::Mode::kOff);
  File out = File::create_new(path);
  write_file(source, plan, out, limits, progress);
  return read_file(path);
}

// The bytes that `content` should give.
std::string expected_bytes(const std::vector<Truth>& truths, const OutputSegment& segment) {
  if (const auto* text = std::get_if<std::string>(&segment.content)) return *text;
  if (const auto* file = std::get_if<FileContent>(&segment.content)) {
    return read_file(file->file).substr(file->offset, segment.bytes);
  }
  const auto& tensor = std::get<TensorContent>(segment.content);
  const Truth& truth = truths[tensor.source];
  std::string bytes = tensor.boxes.empty() ? truth.data : "";
  for (const Box& box : tensor.boxes) bytes += testing::part_of(truth, box);
  if (tensor.dtype == truth.dtype) return bytes;
  std::string target(bytes.size() / item_bytes(truth.dtype) * item_bytes(tensor.dtype), '\0');
  convert_dtype(truth.dtype, bytes_of(bytes), tensor.dtype, std::as_writable_bytes(std::span(target)));
  return target;
}

// Checks that gaps are zeros, and that bytes of archives outside of the data are those of the layout.
std::string expected_file(const std::vector<Truth>& truths, const OutputFile& plan) {
  std::string file(plan.bytes, '\0');
  const auto put = [&](std::uint64_t at, const std::string& bytes) { file.replace(at, bytes.size(), bytes); };
  std::vector<std::uint32_t> crcs;
  for (const OutputSegment& segment : plan.segments) {
    const std::string bytes = expected_bytes(truths, segment);
    crcs.push_back(crc32(bytes_of(bytes)));
    put(segment.offset, bytes);
  }
  for (const OutputArchive& archive : plan.archives) {
    const auto& records = archive.layout.records();
    const auto own = std::span(crcs).subspan(archive.first_segment, records.size());
    for (std::size_t i = 0; i < records.size(); ++i) {
      put(archive.offset + records[i].header_offset, archive.layout.header(i));
      put(archive.offset + records[i].data_offset + records[i].size, archive.layout.descriptor(i, own[i]));
    }
    const std::string directory = archive.layout.directory(own);
    put(archive.offset + archive.layout.total_bytes() - directory.size(), directory);
  }
  return file;
}

// Reads every record of every archive as a reader does, and checks its CRC.
void check_archives(const std::filesystem::path& path, const OutputFile& plan, const std::string& bytes) {
  const File file = File::open_read(path);
  for (const OutputArchive& archive : plan.archives) {
    const FileWindow window(file, archive.offset, archive.layout.total_bytes());
    const ZipIndex index(window);
    ASSERT_EQ(index.entries().size(), archive.layout.records().size());
    for (std::size_t i = 0; i < index.entries().size(); ++i) {
      const OutputSegment& segment = plan.segments[archive.first_segment + i];
      const std::vector<std::byte> record = read_record(window, index.entries()[i]);
      const std::string_view found(reinterpret_cast<const char*>(record.data()), record.size());
      ASSERT_TRUE(found == std::string_view(bytes).substr(segment.offset, segment.bytes)) << i;
    }
  }
}

OutputSegment segment_of(std::uint64_t offset, const std::vector<Truth>& truths, TensorContent content) {
  OutputSegment segment{offset, 0, std::move(content)};
  segment.bytes = expected_bytes(truths, segment).size();
  return segment;
}

class OutputWriteTest : public ::testing::Test {
 protected:
  TempDir dir_;
};

TEST_F(OutputWriteTest, TextsAndGapsAndAnEmptyFile) {
  FakeCheckpoint source(dir_.path(), {});
  EXPECT_EQ(written(source, {"o", 0, {}, {}}, dir_ / "o", least(2)), "");
  EXPECT_EQ(written(source, {"o", 5, {}, {}}, dir_ / "o", least(1)), std::string(5, '\0'));
  const OutputFile plan{"o", 12, {{1, 3, "abc"}, {4, 0, ""}, {4, 2, "de"}, {8, 1, "f"}, {9, 0, ""}}, {}};
  EXPECT_EQ(written(source, plan, dir_ / "o", least(2)), std::string("\0abcde\0\0f\0\0\0", 12));
}

TEST_F(OutputWriteTest, RangesOfFiles) {
  FakeCheckpoint source(dir_.path(), {});
  const std::string data = testing::pattern(9 * kMiB + 1, 5);
  testing::write_file(dir_ / "data", data);
  const OutputFile plan{"o",
                        data.size() + 1,
                        {{0, 3, FileContent{dir_ / "data", 8}},
                         {3, 0, FileContent{dir_ / "data", 8}},
                         {4, data.size() - 3, FileContent{dir_ / "data", 2}}},
                        {}};
  EXPECT_TRUE(written(source, plan, dir_ / "o", least(2)) ==
              data.substr(8, 3) + '\0' + data.substr(2, data.size() - 3));
  const OutputFile beyond{"o", 10, {{0, 10, FileContent{dir_ / "data", data.size() - 9}}}, {}};
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)written(source, beyond, dir_ / "o", least(2)); });
  const OutputFile missing{"o", 10, {{0, 10, FileContent{dir_ / "none", 0}}}, {}};
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)written(source, missing, dir_ / "o", least(2)); }),
              HasSubstr("none"));
}

Dims any_shape() {
  return *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 9)));
}

Box any_box(const Dims& shape) {
  Box box;
  for (const std::int64_t size : shape) {
    box.offsets.push_back(*rc::gen::inRange<std::int64_t>(0, size + 1));
    box.sizes.push_back(*rc::gen::inRange<std::int64_t>(0, size - box.offsets.back() + 1));
  }
  return box;
}

TensorContent any_content(const std::vector<Truth>& truths) {
  TensorContent content{*rc::gen::inRange<std::size_t>(0, truths.size()), {}, {}};
  const Truth& truth = truths[content.source];
  content.dtype = truth.dtype;
  if (is_floating(truth.dtype) && *rc::gen::arbitrary<bool>()) {
    content.dtype = *rc::gen::element(DType::kFloat16, DType::kFloat32, DType::kFloat64);
  }
  for (auto boxes = *rc::gen::inRange(0, 4); boxes > 0; --boxes)
    content.boxes.push_back(any_box(truth.shape));
  return content;
}

RC_GTEST_PROP(OutputWritePropertyTest, AnyPlanGivesItsBytes, ()) {
  const TempDir dir;
  std::vector<Truth> truths;
  const auto count = *rc::gen::inRange(1, 6);
  for (int i = 0; i < count; ++i) {
    const DType dtype = *rc::gen::element(DType::kBool, DType::kBFloat16, DType::kFloat32, DType::kFloat64,
                                          DType::kFloat8E5M2, DType::kComplex128);
    truths.push_back(
        Truth::make({"t" + std::to_string(i)}, dtype, any_shape(), *rc::gen::arbitrary<std::uint32_t>()));
  }
  FakeCheckpoint source(dir / "c", truths, *rc::gen::arbitrary<std::uint32_t>(),
                        *rc::gen::inRange<std::size_t>(0, 6));
  testing::write_file(dir / "other", testing::pattern(200, 77));
  OutputFile plan{"o", 0, {}, {}};
  const auto parts = *rc::gen::inRange(0, 12);
  for (int i = 0; i < parts; ++i) {
    const std::uint64_t offset = plan.bytes + *rc::gen::inRange<std::uint64_t>(0, 5);
    if (*rc::gen::inRange(0, 4) == 0) {
      std::vector<decltype(OutputSegment::content)> contents{
          testing::pattern(*rc::gen::inRange<std::size_t>(0, 9), 3)};
      std::vector<ZipRecord> records{{"archive/data.pkl", std::get<std::string>(contents[0]).size()}};
      for (auto more = *rc::gen::inRange(0, 3); more > 0; --more) {
        contents.emplace_back(any_content(truths));
        records.push_back(
            {"archive/data/" + std::to_string(more), expected_bytes(truths, {0, 0, contents.back()}).size()});
      }
      append_archive(plan, offset, ZipLayout(std::move(records)), std::move(contents));
      continue;
    }
    OutputSegment segment{offset, 0, any_content(truths)};
    if (*rc::gen::inRange(0, 4) == 0)
      segment.content = testing::pattern(*rc::gen::inRange<std::size_t>(0, 50), 9);
    segment.bytes = expected_bytes(truths, segment).size();
    if (*rc::gen::inRange(0, 6) == 0) {
      segment.bytes = *rc::gen::inRange<std::uint64_t>(0, 100);
      segment.content = FileContent{dir / "other", *rc::gen::inRange<std::uint64_t>(0, 100)};
    }
    plan.bytes = segment.offset + segment.bytes;
    plan.segments.push_back(std::move(segment));
  }
  plan.bytes += *rc::gen::inRange<std::uint64_t>(0, 5);
  const std::string bytes = written(source, plan, dir / "o", least(*rc::gen::inRange(1U, 5U)));
  RC_ASSERT(bytes == expected_file(truths, plan));
  check_archives(dir / "o", plan, bytes);
}

// The tensors are larger than buffers and batches: whole in one run, scattered, converted, in an archive.
TEST_F(OutputWriteTest, TensorsLargerThanTheBuffers) {
  const std::vector<Truth> truths{Truth::make({"plain"}, DType::kFloat32, {4'500'000}, 1),
                                  Truth::make({"columns"}, DType::kFloat32, {1500, 1500}, 5'000'000),
                                  Truth::make({"cut"}, DType::kBFloat16, {30, 100'000}, 9'000'000)};
  testing::Scatter scatter(dir_ / "c", 4);
  std::vector<StoredTensor> stored(3);
  for (std::size_t t = 0; t < 3; ++t)
    stored[t] = {fqn_of(truths[t].path), truths[t].dtype, truths[t].shape, {}};
  stored[0].extents = {scatter.place(truths[0], {{0}, {4'000'000}}, true),
                       scatter.place(truths[0], {{4'000'000}, {500'000}}, true)};
  stored[1].extents = {scatter.place(truths[1], {{0, 0}, {1500, 700}}, true),
                       scatter.place(truths[1], {{0, 700}, {1500, 800}}, true)};
  for (std::int64_t row = 0; row < 30; ++row) {
    stored[2].extents.push_back(scatter.place(truths[2], {{row, 0}, {1, 100'000}}, true));
  }
  scatter.write();
  FakeCheckpoint source(dir_ / "c", truths, stored);

  OutputFile plan{"o", 3, {}, {}};
  const auto add = [&](TensorContent content) {
    plan.segments.push_back(segment_of(plan.bytes, truths, std::move(content)));
    plan.bytes += plan.segments.back().bytes;
  };
  for (std::size_t t = 0; t < 3; ++t) add({t, truths[t].dtype, {}});
  add({0, DType::kFloat64, {}});
  add({2, DType::kFloat16, {}});
  add({1, DType::kFloat32, {{{10, 20}, {1400, 1100}}, {{0, 0}, {1, 1}}, {{0, 1}, {1500, 1499}}}});
  std::vector<ZipRecord> records;
  std::vector<decltype(OutputSegment::content)> contents;
  for (std::size_t t = 0; t < 3; ++t) {
    records.push_back({"archive/data/" + std::to_string(t), truths[t].data.size()});
    contents.emplace_back(TensorContent{t, truths[t].dtype, {}});
  }
  append_archive(plan, plan.bytes + 61, ZipLayout(records), contents);
  const std::string expected = expected_file(truths, plan);
  for (const unsigned threads : {1U, 2U, 7U}) {
    const std::string bytes = written(source, plan, dir_ / "o", least(threads));
    EXPECT_TRUE(bytes == expected) << threads << " threads";
    check_archives(dir_ / "o", plan, bytes);
  }
}

TEST_F(OutputWriteTest, ManySmallTensorsAndManyThreads) {
  std::vector<Truth> truths;
  for (std::uint32_t i = 0; i < 500; ++i) {
    truths.push_back(Truth::make({"t" + std::to_string(i)}, DType::kInt16, {i % 7, 3}, i));
  }
  FakeCheckpoint source(dir_ / "c", truths, 3, 3);
  OutputFile plan{"o", 0, {}, {}};
  for (std::size_t t = 0; t < truths.size(); ++t) {
    plan.segments.push_back(segment_of(plan.bytes, truths, {t, DType::kInt16, {}}));
    plan.bytes += plan.segments.back().bytes;
  }
  EXPECT_EQ(written(source, plan, dir_ / "o", least(16)), expected_file(truths, plan));
}

// The source has more files than a reader keeps open.
TEST_F(OutputWriteTest, MoreFilesThanAreKeptOpen) {
  std::vector<Truth> truths{Truth::make({"t"}, DType::kInt32, {300, 5}, 1)};
  std::vector<StoredTensor> stored{{"t", DType::kInt32, {300, 5}, {}}};
  std::filesystem::create_directories(dir_ / "c");
  for (std::int64_t row = 0; row < 300; ++row) {
    const Box box{{row, 0}, {1, 5}};
    const std::string name = "file" + std::to_string(row);
    testing::write_file(dir_ / "c" / name, "##" + truths[0].part(box));
    stored[0].extents.push_back({name, 2, box, {5, 1}});
  }
  FakeCheckpoint source(dir_ / "c", truths, stored);
  OutputFile plan{"o", 0, {}, {}};
  for (int i = 0; i < 3; ++i) {
    plan.segments.push_back(segment_of(plan.bytes, truths, {0, DType::kInt32, {}}));
    plan.bytes += plan.segments.back().bytes;
  }
  EXPECT_EQ(written(source, plan, dir_ / "o", least(3)), expected_file(truths, plan));
}

class FailingWriteTest : public OutputWriteTest {
 protected:
  // The batches of tensor 1 fail.
  OutputFile plan(std::size_t repeats) const {
    OutputFile plan{"o", 0, {}, {}};
    for (std::size_t i = 0; i < repeats; ++i) {
      plan.segments.push_back(
          segment_of(plan.bytes, truths_, {i == repeats / 2 ? 1U : 0U, DType::kFloat32, {}}));
      plan.bytes += plan.segments.back().bytes;
    }
    return plan;
  }

  std::vector<Truth> truths_{Truth::make({"good"}, DType::kFloat32, {300'000}, 1),
                             Truth::make({"bad"}, DType::kFloat32, {300'000}, 1)};
};

TEST_F(FailingWriteTest, AHoleInATensorComesOutOnce) {
  FakeCheckpoint source(dir_ / "c", truths_, 1, 3);
  source.stored(1).extents.pop_back();
  for (const unsigned threads : {1U, 2U, 5U}) {
    const std::string message =
        error_of(ErrorKind::kCorrupt, [&] { (void)written(source, plan(200), dir_ / "o", least(threads)); });
    EXPECT_THAT(message, ::testing::StartsWith("tensor 'bad': the checkpoint holds"));
  }
}

TEST_F(FailingWriteTest, AFileThatIsNotThere) {
  FakeCheckpoint source(dir_ / "c", truths_, 1, 3);
  source.stored(1).extents.back().file = "elsewhere";
  const std::string message =
      error_of(ErrorKind::kMissing, [&] { (void)written(source, plan(200), dir_ / "o", least(2)); });
  EXPECT_THAT(message, ::testing::AllOf(HasSubstr("tensor 'bad'"), HasSubstr("elsewhere")));
}

TEST_F(FailingWriteTest, AFileThatEndsEarly) {
  FakeCheckpoint source(dir_ / "c", truths_, 1, 0);
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "c")) {
    std::filesystem::resize_file(entry.path(), 1000);
  }
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)written(source, plan(200), dir_ / "o", least(2)); });
}

TEST_F(FailingWriteTest, AFailureToLocateInAnyThread) {
  FakeCheckpoint source(dir_ / "c", truths_, 1, 3);
  source.before_locate = [](std::size_t tensor) {
    if (tensor == 1) throw Error(ErrorKind::kMissing, "not to be found");
  };
  for (const unsigned threads : {1U, 4U}) {
    EXPECT_EQ(
        error_of(ErrorKind::kMissing, [&] { (void)written(source, plan(200), dir_ / "o", least(threads)); }),
        "tensor 'bad': not to be found");
  }
}

// An exception that is not an Error must not end the process either.
TEST_F(FailingWriteTest, AForeignException) {
  FakeCheckpoint source(dir_ / "c", truths_, 1, 3);
  source.before_locate = [](std::size_t) { throw std::bad_alloc(); };
  EXPECT_THROW((void)written(source, plan(200), dir_ / "o", least(4)), std::bad_alloc);
}

TEST_F(FailingWriteTest, AnErrorEndsTheOthersEarly) {
  FakeCheckpoint source(dir_ / "c", truths_, 1, 3);
  source.stored(0).extents.pop_back();
  std::atomic<std::size_t> located = 0;
  source.before_locate = [&](std::size_t) { ++located; };
  OutputFile alternating = plan(600);
  for (std::size_t i = 0; i < 600; ++i)
    std::get<TensorContent>(alternating.segments[i].content).source = i % 2;
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)written(source, alternating, dir_ / "o", least(3)); });
  EXPECT_LT(located, 300U);  // A batch has at most 64.
}

TEST_F(OutputWriteTest, RefusesTooLittleMemory) {
  FakeCheckpoint source(dir_.path(), {});
  for (const unsigned threads : {1U, 3U}) {
    const std::string message = error_of(ErrorKind::kUsage, [&] {
      (void)written(source, {"o", 0, {}, {}}, dir_ / "o", {kLeastWriteMemory * threads - 1, threads});
    });
    EXPECT_THAT(message, HasSubstr(std::to_string(threads) + " threads need at least"));
  }
}

TEST_F(OutputWriteTest, FreeSpace) {
  EXPECT_NO_THROW(check_free_space(dir_.path(), 0));
  EXPECT_NO_THROW(check_free_space(dir_ / "not there", ~std::uint64_t{0}));
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { check_free_space(dir_.path(), ~std::uint64_t{0}); }),
              HasSubstr("are needed"));
}

}  // namespace
}  // namespace accel::ckpt
