#include "ckpt/convert/save.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "base/progress.hpp"
#include "ckpt/tensor/tensor_reader.hpp"
#include "ckpt/write/commit.hpp"
#include "output_helpers.hpp"
#include "raw_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::RawCheckpoint;
using testing::TempDir;
using testing::Truth;

SaveOptions options(SaveType type, int ranks = 1) {
  SaveOptions options;
  options.type = type;
  options.ranks = ranks;
  return options;
}

/// Writes `source` in another form and opens that.
std::unique_ptr<Checkpoint> saved(Checkpoint& source, const SaveOptions& options,
                                  const std::filesystem::path& directory) {
  const SavePlan plan = plan_save(source, options);
  OutputTarget target;
  target.path = directory / plan.folder;
  Progress progress("", plan.output.total_bytes(), Progress::Mode::kOff);
  WriteLimits limits;
  limits.threads = 1;
  write_output(source, plan.output, target, limits, progress);
  return open_checkpoint(plan.folder.empty() ? directory / plan.output.files.front().name : target.path);
}

std::map<std::string, std::string> contents_of(Checkpoint& checkpoint) {
  TensorReader reader(checkpoint.directory());
  std::map<std::string, std::string> contents;
  for (std::size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const StoredTensor stored = checkpoint.locate(i);
    std::string bytes(checked_nbytes(stored.shape, item_bytes(stored.dtype)), '\0');
    reader.read_range(stored, 0, checked_numel(stored.shape), std::as_writable_bytes(std::span(bytes)));
    std::string key = std::string(torch_name(stored.dtype)) + to_string(stored.shape) + " ";
    const StatePath& path = checkpoint.tensors()[i].path;
    key += fqn_of(path.front() == PathKey("model") ? StatePath(path.begin() + 1, path.end()) : path);
    contents[std::move(key)] = std::move(bytes);
  }
  return contents;
}

RC_GTEST_PROP(SavePlanTest, EveryFormOfAnyNumberOfRanksHoldsTheSame, ()) {
  std::vector<Truth> truths;
  const auto count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) {
    const Dims shape = *rc::gen::resize(4, rc::gen::container<Dims>(rc::gen::inRange<std::int64_t>(0, 7)));
    const DType dtype = *rc::gen::element(DType::kBool, DType::kBFloat16, DType::kUInt16, DType::kFloat64);
    truths.push_back(
        Truth::make({"model", "h." + std::to_string(i)}, dtype, shape, 100U * static_cast<unsigned>(i)));
  }
  RawCheckpoint source(truths);
  const auto expected = contents_of(source);
  const TempDir dir;
  // The output of each step is the source of the next one.
  std::unique_ptr<Checkpoint> last;
  const auto steps = *rc::gen::inRange(1, 4);
  for (int step = 0; step < steps; ++step) {
    const SaveType type = *rc::gen::element(SaveType::kFull, SaveType::kLocal, SaveType::kSharded);
    const int ranks = type == SaveType::kFull ? 1 : *rc::gen::inRange(1, 6);
    last = saved(last ? *last : source, options(type, ranks), dir / std::to_string(step));
    RC_ASSERT(contents_of(*last) == expected);
  }
}

std::vector<std::string> files_of(const SavePlan& plan) {
  std::vector<std::string> names;
  for (const OutputFile& file : plan.output.files) names.push_back(file.name);
  return names;
}

TEST(SavePlanTest, NamesAreAccelerates) {
  RawCheckpoint model({Truth::make({"model", "w"}, DType::kFloat32, {4}, 1)});
  EXPECT_EQ(files_of(plan_save(model, options(SaveType::kFull))),
            std::vector<std::string>{"pytorch_model_fsdp.bin"});
  EXPECT_EQ(files_of(plan_save(model, options(SaveType::kLocal))),
            (std::vector<std::string>{"pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_rank0.json"}));
  EXPECT_EQ(plan_save(model, options(SaveType::kSharded)).folder, "pytorch_model_fsdp_0");
  SaveOptions second = options(SaveType::kFull);
  second.index = 1;
  EXPECT_EQ(files_of(plan_save(model, second)), std::vector<std::string>{"pytorch_model_fsdp_1.bin"});
  second.type = SaveType::kSharded;
  EXPECT_EQ(plan_save(model, second).folder, "pytorch_model_fsdp_1");

  RawCheckpoint optimizer({Truth::make({"optimizer", "state", "w", "step"}, DType::kFloat32, {}, 1)});
  EXPECT_EQ(files_of(plan_save(optimizer, options(SaveType::kFull))),
            std::vector<std::string>{"optimizer.bin"});
  const SavePlan sharded = plan_save(optimizer, options(SaveType::kSharded, 2));
  EXPECT_TRUE(sharded.optimizer);
  EXPECT_EQ(sharded.folder, "optimizer_0");
  EXPECT_EQ(files_of(sharded), (std::vector<std::string>{"__0_0.distcp", "__1_0.distcp", ".metadata"}));
  EXPECT_EQ(sharded.state.tensors[0].path, (StatePath{"optimizer", "state", "w", "step"}));
}

TEST(SavePlanTest, StaleFilesOfTheSameFormBelongToIt) {
  RawCheckpoint model({Truth::make({"w"}, DType::kFloat32, {4}, 1)});
  const auto local = plan_save(model, options(SaveType::kLocal)).belongs;
  EXPECT_TRUE(local("pytorch_model_fsdp_rank7.bin"));
  EXPECT_TRUE(local("pytorch_model_fsdp_rank7.json"));
  EXPECT_FALSE(local("pytorch_model_fsdp_1_rank7.bin"));
  EXPECT_FALSE(local("pytorch_model_fsdp_rank.bin"));
  EXPECT_FALSE(local("pytorch_model_fsdp.bin"));
  EXPECT_TRUE(plan_save(model, options(SaveType::kFull)).belongs("pytorch_model_fsdp.bin"));
  EXPECT_FALSE(plan_save(model, options(SaveType::kFull)).belongs("optimizer.bin"));
}

TEST(SavePlanTest, ConvertsFloatingPointTensorsOfModels) {
  RawCheckpoint model(
      {Truth::make({"w"}, DType::kFloat32, {4}, 1), Truth::make({"i"}, DType::kInt64, {4}, 1)});
  SaveOptions to_half = options(SaveType::kFull);
  to_half.dtype = DType::kFloat16;
  const SavePlan plan = plan_save(model, to_half);
  EXPECT_EQ(plan.state.tensors[0].dtype, DType::kFloat16);
  EXPECT_EQ(plan.state.tensors[1].dtype, DType::kInt64);
  RawCheckpoint optimizer({Truth::make({"optimizer", "state", "w", "step"}, DType::kFloat32, {}, 1)});
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)plan_save(optimizer, to_half); }),
              HasSubstr("for models"));
}

TEST(SavePlanTest, WhatStandsBesideTheWeightsIsLeftOut) {
  RawCheckpoint source({Truth::make({"model", "w"}, DType::kFloat32, {4}, 1),
                        Truth::make({"optimizer", "state", "w", "exp_avg"}, DType::kFloat32, {4}, 1),
                        Truth::make({"stats", "v"}, DType::kFloat32, {4}, 1)});
  for (const SaveType type : {SaveType::kFull, SaveType::kLocal, SaveType::kSharded}) {
    const SavePlan plan = plan_save(source, options(type));
    EXPECT_EQ(plan.left_out, (std::vector<std::string>{"optimizer.state.w.exp_avg", "stats.v"}));
    ASSERT_EQ(plan.state.tensors.size(), 1U);
    EXPECT_EQ(to_string(plan.parts_left_out), "'optimizer' (1 tensor), 'stats' (1 tensor)");
  }
  SaveOptions chosen = options(SaveType::kSharded);
  chosen.root = "optimizer";
  EXPECT_EQ(plan_save(source, chosen).folder, "optimizer_0");
}

TEST(SavePlanTest, TiesThatAreKnownToTheCallerAreKept) {
  const auto same = [](const char* name) { return Truth::make({"model", name}, DType::kFloat32, {4}, 1); };
  RawCheckpoint source({same("a"), same("b"), Truth::make({"model", "c"}, DType::kFloat32, {4}, 9)});
  SaveOptions tied = options(SaveType::kFull);
  EXPECT_EQ(plan_save(source, tied).state.tensors[1].tied_to, std::nullopt);
  tied.tied = {{"model.b", "model.a"}, {"model.c", "model.a"}};
  const SavePlan plan = plan_save(source, tied);
  EXPECT_EQ(plan.state.tensors[1].tied_to, 0U);
  EXPECT_EQ(plan.state.tensors[2].tied_to, std::nullopt);  // Its bytes are others.
}

TEST(SavePlanTest, RefusesWhatTheFormHasNoPlaceFor) {
  RawCheckpoint model({Truth::make({"w"}, DType::kFloat32, {4}, 1)});
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)plan_save(model, options(SaveType::kFull, 2)); }),
              HasSubstr("one file"));
  RawCheckpoint optimizer({Truth::make({"optimizer", "state", "w", "step"}, DType::kFloat32, {}, 1)});
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)plan_save(optimizer, options(SaveType::kLocal)); }),
              HasSubstr("no local form"));
  RawCheckpoint nothing({});
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)plan_save(nothing, options(SaveType::kFull)); }),
              HasSubstr("nothing to save"));
}

}  // namespace
}  // namespace accel::ckpt
