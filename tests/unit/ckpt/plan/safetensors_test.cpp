#include "ckpt/plan/safetensors.hpp"
#include "ckpt/safetensors/header.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

const WeightFiles kModel{"model", ".safetensors"};

// int8 tensors of these sizes in bytes, called t0, t1, ...
OutputState state_of(const std::vector<std::int64_t>& sizes) {
  OutputState state;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    state.tensors.push_back({{"t" + std::to_string(i)}, i, DType::kInt8, {sizes[i]}, std::nullopt});
  }
  return state;
}

StringMap metadata_of(const OutputFile& file) {
  const auto& prefix = std::get<std::string>(file.segments.at(0).content);
  return parse_safetensors_header(testing::bytes_of(prefix).subspan(8), file.bytes - prefix.size()).metadata;
}

TEST(PlanSafetensorsFilesTest, OneFile) {
  OutputState state;
  state.tensors = {{{"h", std::int64_t{0}, "w"}, 7, DType::kFloat16, {2, 3}, std::nullopt},
                   {{"empty"}, 3, DType::kFloat32, {0, 4}, std::nullopt},
                   {{"a"}, 5, DType::kFloat32, {}, std::nullopt}};
  const OutputPlan plan = plan_safetensors_files(state, kModel, 0);
  ASSERT_EQ(plan.files.size(), 1U);
  const OutputFile& file = plan.files[0];
  EXPECT_EQ(file.name, "model.safetensors");
  EXPECT_NO_THROW(check_plan(plan));
  const auto& prefix = std::get<std::string>(file.segments.at(0).content);
  const auto header =
      parse_safetensors_header(testing::bytes_of(prefix).subspan(8), file.bytes - prefix.size());
  ASSERT_EQ(header.entries.size(), 3U);
  ASSERT_EQ(file.segments.size(), 3U);  // Nothing is written for a tensor without elements.
  const auto& first = std::get<TensorContent>(file.segments[1].content);
  EXPECT_EQ(first.source, 5U);
  EXPECT_EQ(file.segments[1].offset, prefix.size());
  EXPECT_EQ(file.segments[1].bytes, 4U);
  const auto& second = std::get<TensorContent>(file.segments[2].content);
  EXPECT_EQ(second.source, 7U);
  EXPECT_EQ(second.dtype, DType::kFloat16);
  EXPECT_TRUE(second.boxes.empty());
  EXPECT_EQ(file.segments[2].offset, prefix.size() + 4);
  EXPECT_EQ(file.segments[2].bytes, 12U);
  EXPECT_EQ(metadata_of(file), (StringMap{{"format", "pt"}}));
}

TEST(PlanSafetensorsFilesTest, ShardsAndTheIndexLast) {
  OutputState state = state_of({6, 6, 2, 6});
  state.tensors[3].tied_to = 1;
  const OutputPlan plan = plan_safetensors_files(state, kModel, 10);
  ASSERT_EQ(plan.files.size(), 3U);
  EXPECT_NO_THROW(check_plan(plan));
  EXPECT_EQ(plan.files[0].name, "model-00001-of-00002.safetensors");
  EXPECT_EQ(plan.files[1].name, "model-00002-of-00002.safetensors");
  EXPECT_EQ(plan.files[2].name, "model.safetensors.index.json");
  EXPECT_EQ(metadata_of(plan.files[0]), (StringMap{{"format", "pt"}}));
  EXPECT_EQ(metadata_of(plan.files[1]), (StringMap{{"format", "pt"}, {"t3", "t1"}}));
  const auto& text = std::get<std::string>(plan.files[2].segments.at(0).content);
  EXPECT_EQ(plan.files[2].bytes, text.size());
  const auto index = nlohmann::json::parse(text);
  EXPECT_EQ(index["metadata"]["total_size"], 14);
  EXPECT_EQ(index["weight_map"].size(), 3U);
  EXPECT_EQ(index["weight_map"]["t0"], plan.files[0].name);
  EXPECT_EQ(index["weight_map"]["t2"], plan.files[1].name);
}

TEST(PlanSafetensorsFilesTest, OneLargeTensorIsOneFileWithoutAnIndex) {
  const OutputPlan plan = plan_safetensors_files(state_of({20}), kModel, 10);
  ASSERT_EQ(plan.files.size(), 1U);
  EXPECT_EQ(plan.files[0].name, "model.safetensors");
}

TEST(PlanSafetensorsFilesTest, NoTensorsAtAll) {
  const OutputPlan plan = plan_safetensors_files({}, kModel, 10);
  ASSERT_EQ(plan.files.size(), 1U);
  EXPECT_EQ(metadata_of(plan.files[0]), (StringMap{{"format", "pt"}}));
}

TEST(PlanSafetensorsFilesTest, RefusesWhatSafetensorsCannotHold) {
  OutputState state = state_of({1, 1});
  state.tensors[1].dtype = DType::kComplex128;
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)plan_safetensors_files(state, kModel, 0); }),
              HasSubstr("'t1' is complex128"));
  state = state_of({1, 1});
  state.tensors[1].path = {"t0"};
  (void)error_of(ErrorKind::kFailure, [&] { (void)plan_safetensors_files(state, kModel, 0); });
  state.tensors[1].path = {"\xff"};
  (void)error_of(ErrorKind::kFailure, [&] { (void)plan_safetensors_files(state, kModel, 0); });
}

RC_GTEST_PROP(PlanSafetensorsFilesPropertyTest, EveryTensorIsInOneFile, ()) {
  const auto sizes = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 20));
  const auto most = *rc::gen::inRange<std::uint64_t>(0, 40);
  const OutputPlan plan = plan_safetensors_files(state_of(sizes), kModel, most);
  check_plan(plan);
  std::vector<std::size_t> found;
  for (const OutputFile& file : plan.files) {
    for (const OutputSegment& segment : file.segments) {
      if (const auto* tensor = std::get_if<TensorContent>(&segment.content)) found.push_back(tensor->source);
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::size_t> all(sizes.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  RC_ASSERT(found == all);
}

}  // namespace
}  // namespace accel::ckpt
