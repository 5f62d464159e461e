#include "ckpt/read/converted_checkpoint.hpp"

#include <gmock/gmock.h>

#include <memory>

#include "ckpt/read/listed_checkpoint.hpp"
#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ListedTensor tensor_at(StatePath path, std::uint64_t offset, Dims shape, DType dtype = DType::kFloat32) {
  return {std::move(path), dtype, shape, {{"file", offset, Box::whole(shape), row_major_strides(shape)}}};
}

std::unique_ptr<Checkpoint> checkpoint_of(std::vector<ListedTensor> tensors) {
  return std::make_unique<ListedCheckpoint>(
      Listing{Kind::kTorch, "dir/file", "dir", std::move(tensors), {{{"lr"}, 0.5}}, {}});
}

TensorPart row(const std::string& from, std::int64_t at) {
  return {from, {{0}, {3}}, {at, 0}, {TensorPart::kNewDim, 0}};
}

const std::vector<TensorConversion>& stacked() {
  static const std::vector<TensorConversion> conversions = {
      {"norm", "old.norm", {}}, {"experts", {}, {row("0.w", 0), row("1.w", 1)}}, {"tied", "absent", {}}};
  return conversions;
}

std::vector<std::string> names_of(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : checkpoint.tensors()) names.push_back(tensor.name);
  return names;
}

TEST(ConvertedCheckpointTest, TensorsStandWhereTheirFirstPartStood) {
  std::unique_ptr<Checkpoint> checkpoint =
      checkpoint_of({tensor_at({"0.w"}, 0, {3}), tensor_at({"head"}, 12, {5}), tensor_at({"1.w"}, 32, {3}),
                     tensor_at({"old.norm"}, 44, {2})});
  std::vector<TensorConversion> conversions = applicable(stacked(), tensor_names(*checkpoint));
  EXPECT_THAT(conversions, SizeIs(2));  // A tied tensor may be absent.
  checkpoint = convert_tensors(std::move(checkpoint), std::move(conversions));
  EXPECT_THAT(names_of(*checkpoint), ElementsAre("experts", "head", "norm"));
  EXPECT_EQ(checkpoint->tensors()[0].shape, (Dims{2, 3}));
  EXPECT_EQ(checkpoint->tensors()[0].pieces, 2U);
  const StoredTensor stored = checkpoint->locate(0);
  EXPECT_EQ(stored.name, "experts");
  EXPECT_EQ(stored.extents.at(1).offset, 32U);
  EXPECT_EQ(stored.extents.at(1).box, (Box{{1, 0}, {1, 3}}));
  EXPECT_EQ(checkpoint->locate(2).extents.at(0).offset, 44U);
  for (std::size_t i = 0; i < 3; ++i) checkpoint->check_coverage(i);
  EXPECT_TRUE(same(checkpoint->read_object(0), pickle::Value(0.5)));
}

TEST(ConvertedCheckpointTest, TheRootKeyStays) {
  std::unique_ptr<Checkpoint> checkpoint =
      checkpoint_of({tensor_at({"model", "0.w"}, 0, {3}), tensor_at({"model", "1.w"}, 12, {3})});
  checkpoint = convert_tensors(std::move(checkpoint), applicable(stacked(), {"0.w", "1.w"}));
  EXPECT_THAT(names_of(*checkpoint), ElementsAre("model.experts"));
  EXPECT_THAT(tensor_names(*checkpoint), ElementsAre("experts"));
}

TEST(ConvertedCheckpointTest, NamesOfTheModelAreLeftAlone) {
  EXPECT_THAT(applicable(stacked(), {"experts", "norm", "head"}), IsEmpty());
  // `b` is a name before the conversion and after it. Only `a` tells which one is meant.
  const std::vector<TensorConversion> chain = {{"b", "a", {}}, {"c", "b", {}}};
  EXPECT_THAT(applicable(chain, {"b", "c"}), IsEmpty());
  EXPECT_EQ(applicable(chain, {"a", "b"}), chain);
}

TEST(ConvertedCheckpointTest, APartThatIsMissingIsNamed) {
  EXPECT_THAT(error_of(ErrorKind::kMissing,
                       [] {
                         (void)applicable(stacked(), {"0.w", "old.norm"});
                       }),
              HasSubstr("'experts' is made of 2 tensors, of which '1.w' is missing"));
}

TEST(ConvertedCheckpointTest, WhatDoesNotFitIsNamed) {
  const auto error = [](ListedTensor second, std::vector<TensorConversion> conversions) {
    return error_of(ErrorKind::kUsage, [&] {
      (void)convert_tensors(checkpoint_of({tensor_at({"0.w"}, 0, {3}), std::move(second)}),
                            std::move(conversions));
    });
  };
  const std::vector<TensorConversion> experts = {stacked()[1]};
  EXPECT_THAT(error(tensor_at({"1.w"}, 12, {2}), experts),
              HasSubstr("'1.w', a part of 'experts', is [2], which does not contain the box [0:3]"));
  EXPECT_THAT(error(tensor_at({"1.w"}, 12, {4}), experts),
              HasSubstr("'1.w' is [4], of which the model takes 3 elements alone"));
  EXPECT_THAT(error(tensor_at({"1.w"}, 12, {3}, DType::kBFloat16), experts),
              HasSubstr("is bfloat16, but '0.w' is float32"));
  EXPECT_THAT(error(tensor_at({"2.w"}, 12, {3}), experts),
              HasSubstr("has no tensor '1.w', of which 'experts' is made"));
  EXPECT_THAT(error(tensor_at({"norm"}, 12, {3}), {{"norm", "0.w", {}}}),
              HasSubstr("has a tensor 'norm' beside"));
}

TEST(ConvertedCheckpointTest, PartsThatShareElementsOfASourceAreAnError) {
  const auto half = [](std::int64_t of, std::int64_t at) { return TensorPart{"w", {{of}, {2}}, {at}, {0}}; };
  const auto error = [](std::vector<TensorConversion> conversions) {
    return error_of(ErrorKind::kUsage, [&] {
      (void)convert_tensors(checkpoint_of({tensor_at({"w"}, 0, {4})}), std::move(conversions));
    });
  };
  // As many elements are taken as there are, and the second half is lost.
  EXPECT_THAT(error({{"twice", {}, {half(0, 0), half(0, 2)}}}), HasSubstr("'w' is [4]"));
  EXPECT_THAT(error({{"a", {}, {half(0, 0)}}, {"b", {}, {half(0, 0)}}}), HasSubstr("'w' is [4]"));
  EXPECT_THAT(error({{"a", {}, {half(0, 0)}}, {"b", {}, {half(1, 0)}}}), HasSubstr("'w' is [4]"));
  EXPECT_THAT(error({{"a", {}, {half(0, 0), half(1, 2)}}, {"b", {}, {half(2, 0)}}}), HasSubstr("'w' is [4]"));
  const std::unique_ptr<Checkpoint> both = convert_tensors(
      checkpoint_of({tensor_at({"w"}, 0, {4})}), {{"a", {}, {half(2, 0)}}, {"b", {}, {half(0, 0)}}});
  EXPECT_EQ(both->tensors().size(), 2U);
}

std::vector<PatternRename> rules(std::vector<std::pair<std::string, std::string>> pairs) {
  std::vector<PatternRename> result;
  for (const auto& [pattern, replacement] : pairs) result.emplace_back(NamePattern(pattern), replacement);
  return result;
}

TEST(ConvertedCheckpointTest, PatternsRenameInTheirOrder) {
  const std::vector<TensorConversion> conversions = conversions_by_pattern(
      {"h.0.gamma", "h.1.gamma", "wte"},
      rules({{"gamma$", "weight"}, {R"(^h\.(\d+)\.)", R"(layers.\1.norm.)"}}), "rename");
  ASSERT_THAT(conversions, SizeIs(2));
  EXPECT_EQ(conversions[1].name, "layers.1.norm.weight");
  EXPECT_EQ(conversions[1].from, "h.1.gamma");
  EXPECT_THAT(error_of(ErrorKind::kUsage,
                       [] {
                         (void)conversions_by_pattern({"a"}, rules({{"b", "c"}}), "rename");
                       }),
              HasSubstr("rename: the pattern 'b' is found in no name"));
  EXPECT_THAT(error_of(ErrorKind::kUsage,
                       [] {
                         (void)conversions_by_pattern({"a", "b"}, rules({{"a", "b"}}), "rename");
                       }),
              HasSubstr("rename: 'a' and 'b' would both be called 'b'"));
}

}  // namespace
}  // namespace accel::ckpt
