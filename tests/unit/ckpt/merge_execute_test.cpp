#include "ckpt/merge_execute.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::Assignment;
using testing::error_of;
using testing::flat_split;
using testing::names_in;
using testing::read_file;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;

void merge(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
           AtomicFile::Existing existing = AtomicFile::Existing::kRefuse,
           std::uint64_t memory = kLeastMergeMemory) {
  DcpReader reader(checkpoint);
  const MergePlan plan = plan_merge(model_tensors_of(reader).tensors, {});
  Progress progress("", plan.tensor_bytes(), Progress::Mode::kOff);
  execute_merge(plan, checkpoint, target, existing, {memory}, progress);
}

// What the merged file holds, by name.
std::map<std::string, std::string> contents_of(const std::filesystem::path& path) {
  const SafetensorsHeader header = read_safetensors_header(File::open_read(path));
  const std::string file = read_file(path);
  std::map<std::string, std::string> contents;
  for (const SafetensorsEntry& entry : header.entries) {
    contents[entry.name] = file.substr(header.buffer_offset + entry.begin, entry.end - entry.begin);
  }
  return contents;
}

// Cuts a box into a grid of boxes, at random places in each dimension.
std::vector<Box> any_grid(const Dims& shape) {
  std::vector<Box> boxes{Box::whole(shape)};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 2) continue;
    const auto cut = *rc::gen::inRange<std::int64_t>(1, shape[d] + 1);
    std::vector<Box> halves;
    for (const Box& box : boxes) {
      for (const auto& [begin, end] : {std::pair(std::int64_t{0}, cut), std::pair(cut, shape[d])}) {
        if (begin == end) continue;
        halves.push_back(box);
        halves.back().offsets[d] = begin;
        halves.back().sizes[d] = end - begin;
      }
    }
    boxes = std::move(halves);
  }
  return boxes;
}

std::vector<Truth> any_truths() {
  std::vector<Truth> truths;
  const auto count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) {
    const Dims shape = *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 7)));
    const DType dtype = *rc::gen::element(DType::kBool, DType::kBFloat16, DType::kFloat32, DType::kInt64);
    truths.push_back(
        Truth::make({"model", "t" + std::to_string(i)}, dtype, shape, static_cast<std::uint32_t>(1000 * i)));
  }
  return truths;
}

void check_merge(const std::vector<Truth>& truths, const std::vector<Assignment>& ranks) {
  const TempDir dir;
  write_checkpoint(dir / "c", truths, ranks);
  merge(dir / "c", dir / "m.safetensors");
  std::map<std::string, std::string> expected;
  for (const Truth& truth : truths) expected[std::get<std::string>(truth.path[1])] = truth.data;
  RC_ASSERT(contents_of(dir / "m.safetensors") == expected);
}

RC_GTEST_PROP(MergePropertyTest, MergeOfFlatShardsIsIdentity, ()) {
  const std::vector<Truth> truths = any_truths();
  check_merge(truths, flat_split(truths, *rc::gen::inRange<std::size_t>(1, 8)));
}

RC_GTEST_PROP(MergePropertyTest, MergeOfAnyGridIsIdentity, ()) {
  const std::vector<Truth> truths = any_truths();
  std::vector<Assignment> ranks(*rc::gen::inRange<std::size_t>(1, 5));
  for (std::size_t t = 0; t < truths.size(); ++t) {
    for (Box& box : any_grid(truths[t].shape)) {
      ranks[*rc::gen::inRange<std::size_t>(0, ranks.size())].emplace_back(t, std::move(box));
    }
  }
  check_merge(truths, ranks);
}

// Larger than the buffers, so that tensors go in pieces, and some through the kernel.
TEST(MergeLargeTest, TensorsOfAllLayouts) {
  const TempDir dir;
  std::vector<Truth> truths{Truth::make({"m", "rows"}, DType::kFloat32, {1500, 1001}, 1),
                            Truth::make({"m", "columns"}, DType::kFloat32, {1500, 1001}, 2'000'000),
                            Truth::make({"m", "small"}, DType::kFloat32, {3}, 9)};
  std::vector<Assignment> ranks = flat_split(truths, 3);
  for (Assignment& rank : ranks) std::erase_if(rank, [](const auto& entry) { return entry.first == 1; });
  ranks[0].emplace_back(1, Box{{0, 0}, {1500, 400}});
  ranks[1].emplace_back(1, Box{{0, 400}, {1500, 601}});
  write_checkpoint(dir / "c", truths, ranks);
  merge(dir / "c", dir / "m.safetensors");
  std::map<std::string, std::string> found = contents_of(dir / "m.safetensors");
  for (const Truth& truth : truths) EXPECT_TRUE(found[std::get<std::string>(truth.path[1])] == truth.data);
}

class MergeExecuteTest : public ::testing::Test {
 protected:
  MergeExecuteTest() { write_checkpoint(dir_ / "c", {truth_}, flat_split({truth_}, 2)); }

  TempDir dir_;
  Truth truth_ = Truth::make({"m", "w"}, DType::kFloat32, {5, 7}, 1);
};

TEST_F(MergeExecuteTest, RefusesAnExistingFileUnlessForced) {
  testing::write_file(dir_ / "m.safetensors", "old");
  EXPECT_THROW(merge(dir_ / "c", dir_ / "m.safetensors"), Error);
  EXPECT_EQ(read_file(dir_ / "m.safetensors"), "old");
  merge(dir_ / "c", dir_ / "m.safetensors", AtomicFile::Existing::kReplace);
  EXPECT_EQ(contents_of(dir_ / "m.safetensors")["w"], truth_.data);
}

TEST_F(MergeExecuteTest, AFailureLeavesNothing) {
  DcpReader reader(dir_ / "c");
  const MergePlan plan = plan_merge(model_tensors_of(reader).tensors, {});
  std::filesystem::resize_file(dir_ / "c/__1_0.distcp", 10);
  Progress progress("", 0, Progress::Mode::kOff);
  (void)error_of(ErrorKind::kCorrupt, [&] {
    execute_merge(plan, dir_ / "c", dir_ / "m.safetensors", AtomicFile::Existing::kRefuse, {}, progress);
  });
  EXPECT_EQ(names_in(dir_.path()), std::vector<std::string>{"c"});
}

TEST_F(MergeExecuteTest, RefusesTooLittleMemory) {
  (void)error_of(ErrorKind::kUsage,
                 [&] { merge(dir_ / "c", dir_ / "m", AtomicFile::Existing::kRefuse, 1'000'000); });
}

}  // namespace
}  // namespace accel::ckpt
