#include "ckpt/convert/merge.hpp"
#include "ckpt/safetensors/header.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "ckpt/write/commit.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::AllOf;
using testing::Assignment;
using ::testing::ElementsAre;
using testing::error_of;
using testing::flat_split;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::names_in;
using testing::read_file;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;

void merge(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
           const MergeOptions& options = {.keep_tied = true}, const WriteLimits& limits = {}) {
  const std::unique_ptr<Checkpoint> source = open_checkpoint(checkpoint);
  const MergePlan plan = plan_merge(*source, options);
  Progress progress("", plan.output.total_bytes(), Progress::Mode::kOff);
  OutputTarget to;
  to.path = target;
  to.existing = AtomicFile::Existing::kReplace;
  to.belongs = [names = plan.names](std::string_view name) { return names.belongs(std::string(name)); };
  write_output(*source, plan.output, to, limits, progress);
}

// The contents of the safetensors files in a directory, by name.
std::map<std::string, std::string> contents_of(const std::filesystem::path& directory) {
  std::map<std::string, std::string> contents;
  for (const std::string& name : names_in(directory)) {
    if (!name.ends_with(".safetensors")) continue;
    const SafetensorsHeader header = read_safetensors_header(File::open_read(directory / name));
    const std::string file = read_file(directory / name);
    for (const SafetensorsEntry& entry : header.entries) {
      contents[entry.name] = file.substr(header.buffer_offset + entry.begin, entry.end - entry.begin);
    }
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
  MergeOptions options{.keep_tied = true};
  options.max_shard_bytes = *rc::gen::element<std::uint64_t>(0, 1, 100, 1000);
  merge(dir / "c", dir / "out", options);
  std::map<std::string, std::string> expected;
  for (const Truth& truth : truths) expected[std::get<std::string>(truth.path[1])] = truth.data;
  RC_ASSERT(contents_of(dir / "out") == expected);
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

// The tensors are larger than the buffers, so they are written in pieces, and some within the kernel.
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
  for (const unsigned threads : {1U, 3U}) {
    merge(dir / "c", dir / "out", {}, {.memory_bytes = threads * kLeastWriteMemory, .threads = threads});
    std::map<std::string, std::string> found = contents_of(dir / "out");
    for (const Truth& truth : truths) {
      EXPECT_TRUE(found[std::get<std::string>(truth.path[1])] == truth.data) << threads;
    }
  }
}

class MergePlanTest : public ::testing::Test {
 protected:
  MergePlan plan_of(const std::vector<Truth>& truths, const std::vector<DcpItem>& objects = {},
                    const MergeOptions& options = {}) {
    std::filesystem::remove_all(dir_ / "c");
    write_checkpoint(dir_ / "c", truths, flat_split(truths, 2), objects);
    source_ = open_checkpoint(dir_ / "c");
    return plan_merge(*source_, options);
  }
  static Truth tensor(StatePath path, std::uint32_t seed = 1, Dims shape = {2, 3}) {
    return Truth::make(std::move(path), DType::kFloat32, std::move(shape), seed);
  }

  TempDir dir_;
  std::unique_ptr<Checkpoint> source_;
};

TEST_F(MergePlanTest, TiedTensorsAreWrittenOnceAndRecorded) {
  const MergePlan plan =
      plan_of({tensor({"model", "wte"}), tensor({"model", "lm_head"})}, {}, {.drop_equal = true});
  ASSERT_EQ(plan.output.files.size(), 1U);
  EXPECT_EQ(plan.output.files[0].segments.size(), 2U);  // The header, and one tensor.
  EXPECT_THAT(std::get<std::string>(plan.output.files[0].segments[0].content),
              HasSubstr(R"("__metadata__":{"format":"pt","lm_head":"wte"})"));
}

TEST_F(MergePlanTest, EqualTensorsAreWrittenUnderEachName) {
  const MergePlan plan = plan_of({tensor({"model", "wte"}), tensor({"model", "lm_head"})});
  EXPECT_EQ(plan.output.files[0].segments.size(), 3U);  // The header, and two tensors.
  EXPECT_THAT(error_of(ErrorKind::kUsage,
                       [&] {
                         (void)plan_of({tensor({"model", "w"})}, {}, {.keep_tied = true, .drop_equal = true});
                       }),
              HasSubstr("--keep-tied writes every tensor"));
}

TEST_F(MergePlanTest, ATieIsRecordedInTheShardOfItsTensor) {
  MergeOptions options{.drop_equal = true};
  options.max_shard_bytes = 24;
  const MergePlan plan = plan_of(
      {tensor({"model", "wte"}), tensor({"model", "b"}, 9), tensor({"model", "lm_head"})}, {}, options);
  ASSERT_EQ(plan.output.files.size(), 3U);
  EXPECT_THAT(std::get<std::string>(plan.output.files[0].segments[0].content), HasSubstr("lm_head"));
  EXPECT_THAT(std::get<std::string>(plan.output.files[1].segments[0].content),
              ::testing::Not(HasSubstr("lm_head")));
  EXPECT_EQ(plan.output.files[2].name, "model.safetensors.index.json");
}

TEST_F(MergePlanTest, AnAdapterHasTheNamesOfPeft) {
  const MergePlan plan = plan_of({tensor({"model", "b.q.lora_A.default.weight"}),
                                  tensor({"model", "b.head.modules_to_save.default.weight"}, 9),
                                  tensor({"model", "b.head.original_module.weight"}, 7)});
  EXPECT_EQ(plan.names.stem, "adapter_model");
  ASSERT_EQ(plan.state.tensors.size(), 2U);
  EXPECT_EQ(fqn_of(plan.state.tensors[0].path), "b.q.lora_A.weight");
  EXPECT_EQ(fqn_of(plan.state.tensors[1].path), "b.head.weight");
  EXPECT_THAT(plan.left_out, ElementsAre("model.b.head.original_module.weight"));
  EXPECT_THAT(error_of(ErrorKind::kUsage,
                       [&] {
                         (void)plan_of({tensor({"model", "b.q.lora_A.default.weight"}),
                                        tensor({"model", "b.q.lora_A.weight"}, 9)});
                       }),
              HasSubstr("would both be called 'b.q.lora_A.weight', as PEFT names them"));
}

TEST_F(MergePlanTest, WhatIsNoWeightIsNamed) {
  const MergePlan plan = plan_of({tensor({"model", "w"}), tensor({"trainer_state", "v"}, 9)},
                                 {{{"epoch"}, 3}, {{"model", "extra"}, 4}});
  EXPECT_THAT(plan.left_out, ElementsAre("trainer_state.v", "epoch", "model.extra"));
  ASSERT_EQ(plan.state.tensors.size(), 1U);
  EXPECT_EQ(fqn_of(plan.state.tensors[0].path), "w");
}

TEST_F(MergePlanTest, AnOptimizerKeepsWhatIsNoTensorAsJson) {
  const MergePlan plan = plan_of({tensor({"optimizer", "state", "w", "exp_avg"})},
                                 {{{"optimizer", "param_groups", std::int64_t{0}, "lr"}, 0.5}});
  EXPECT_TRUE(plan.optimizer);
  EXPECT_THAT(plan.left_out, IsEmpty());
  ASSERT_EQ(plan.output.files.size(), 2U);
  EXPECT_EQ(plan.output.files[0].name, "optimizer.json");
  EXPECT_EQ(std::get<std::string>(plan.output.files[0].segments[0].content),
            "{\n  \"param_groups\": [\n    {\n      \"lr\": 0.5\n    }\n  ]\n}\n");
  EXPECT_EQ(plan.output.files[1].name, "optimizer.safetensors");
}

TEST_F(MergePlanTest, RefusesNothing) {
  EXPECT_THAT(error_of(ErrorKind::kMissing,
                       [&] {
                         (void)plan_of({}, {{{"model", "x"}, 1}});
                       }),
              HasSubstr("holds no tensors"));
  MergeOptions options;
  options.selection.exclude = {"*"};
  EXPECT_THAT(error_of(ErrorKind::kMissing,
                       [&] {
                         (void)plan_of({tensor({"model", "w"})}, {}, options);
                       }),
              HasSubstr("that were chosen"));
}

TEST_F(MergePlanTest, ConvertsTheHeaderToo) {
  MergeOptions options;
  options.selection.dtype = DType::kBFloat16;
  const MergePlan plan = plan_of({tensor({"model", "w"})}, {}, options);
  EXPECT_THAT(std::get<std::string>(plan.output.files[0].segments[0].content),
              AllOf(HasSubstr(R"("dtype":"BF16")"), HasSubstr(R"("data_offsets":[0,12])")));
}

}  // namespace
}  // namespace accel::ckpt
