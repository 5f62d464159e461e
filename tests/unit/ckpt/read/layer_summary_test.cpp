#include "ckpt/read/layer_summary.hpp"

#include <gmock/gmock.h>

#include <limits>
#include <tuple>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::IsEmpty;

using Row = std::tuple<std::string, std::size_t, std::size_t, std::int64_t, std::uint64_t>;

LayerTensor tensor(std::string name, Dims shape, DType dtype = DType::kFloat32) {
  const std::uint64_t bytes = checked_nbytes(shape, item_bytes(dtype));
  return {std::move(name), dtype, std::move(shape), bytes};
}

// The name, layers, tensors, elements and bytes of each row.
std::vector<Row> rows(std::vector<LayerTensor> tensors) {
  std::vector<Row> rows;
  for (const LayerRow& row : summarize_layers(std::move(tensors)))
    rows.emplace_back(row.name, row.layers, row.tensors, row.elements, row.bytes);
  return rows;
}

TEST(LayerSummaryTest, EqualLayersAreOneRow) {
  std::vector<LayerTensor> tensors{tensor("lm_head.weight", {5, 2}), tensor("model.embed.weight", {5, 2}),
                                   tensor("model.norm.weight", {2})};
  for (const char* layer : {"0", "1", "2", "10"}) {
    tensors.push_back(tensor(std::string("model.layers.") + layer + ".mlp.up.weight", {2, 3}));
    tensors.push_back(tensor(std::string("model.layers.") + layer + ".mlp.up.bias", {3}));
  }
  EXPECT_THAT(rows(tensors),
              ElementsAre(Row("lm_head", 1, 1, 10, 40), Row("model.embed", 1, 1, 10, 40),
                          Row("model.layers.0-2,10", 4, 8, 36, 144), Row("model.norm", 1, 1, 2, 8)));
}

TEST(LayerSummaryTest, LayersThatDifferInNamesShapesOrDtypesAreRowsOfTheirOwn) {
  EXPECT_THAT(rows({tensor("h.0.a", {2}), tensor("h.1.a", {2}), tensor("h.2.b", {2}), tensor("h.3.a", {3}),
                    tensor("h.4.a", {2}, DType::kBFloat16), tensor("h.5.a", {2})}),
              ElementsAre(Row("h.0-1,5", 3, 3, 6, 24), Row("h.2", 1, 1, 2, 8), Row("h.3", 1, 1, 3, 12),
                          Row("h.4", 1, 1, 2, 4)));
}

TEST(LayerSummaryTest, TheFirstNumberOfANameIsTheLayers) {
  // Experts are inside a layer.
  EXPECT_THAT(rows({tensor("layers.0.experts.0.w", {2}), tensor("layers.0.experts.1.w", {2}),
                    tensor("layers.0.gate.w", {2})}),
              ElementsAre(Row("layers.0", 1, 3, 6, 24)));
}

TEST(LayerSummaryTest, AModuleWithLayersInsideIsNotARow) {
  EXPECT_THAT(
      rows({tensor("bert.embeddings.word.weight", {4}), tensor("bert.embeddings.position.weight", {4}),
            tensor("bert.encoder.layer.0.w", {2}), tensor("bert.encoder.layer.1.w", {2}),
            tensor("bert.cls_token", {3}), tensor("cls.predictions.bias", {1})}),
      ElementsAre(Row("bert.cls_token", 1, 1, 3, 12), Row("bert.embeddings", 1, 2, 8, 32),
                  Row("bert.encoder.layer.0-1", 2, 2, 4, 16), Row("cls", 1, 1, 1, 4)));
}

TEST(LayerSummaryTest, ASequentialAndAListOfTensorsHaveNumbersToo) {
  EXPECT_THAT(rows({tensor("0.weight", {2}), tensor("2.weight", {2}), tensor("3.weight", {4})}),
              ElementsAre(Row("0,2", 2, 2, 4, 16), Row("3", 1, 1, 4, 16)));
  EXPECT_THAT(rows({tensor("w.0", {2}), tensor("w.1", {2})}), ElementsAre(Row("w.0-1", 2, 2, 4, 16)));
  EXPECT_THAT(rows({tensor("w.01", {2}), tensor("w.99999999999999999999", {2})}),
              ElementsAre(Row("w", 1, 2, 4, 16)));
  EXPECT_THAT(rows({}), IsEmpty());
  EXPECT_THAT(rows({tensor("", {2}), tensor("..", {2})}), ElementsAre(Row("", 1, 2, 4, 16)));
}

TEST(LayerSummaryTest, DtypesAreCounted) {
  const auto found = summarize_layers({tensor("h.0.a", {2}), tensor("h.0.b", {2}, DType::kInt8),
                                       tensor("h.1.a", {2}), tensor("h.1.b", {2}, DType::kInt8)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].dtypes, (std::map<DType, std::size_t>{{DType::kFloat32, 2}, {DType::kInt8, 2}}));
}

// A name of a million parts, and one million layers, would take hours if a step looked at all of the others.
TEST(LayerSummaryTest, NamesMayBeLongAndMany) {
  std::string name = "a";
  for (int i = 0; i < 1'000'000; ++i) name += ".a";
  EXPECT_THAT(rows({tensor(name, {1})}), ElementsAre(Row("a", 1, 1, 1, 4)));
  std::vector<LayerTensor> tensors;
  for (int i = 0; i < 100'000; ++i) tensors.push_back(tensor("h." + std::to_string(i), {1 + i}));
  EXPECT_EQ(rows(tensors).size(), tensors.size());
}

TEST(LayerSummaryTest, SumsThatOverflowAreRefused) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const LayerTensor huge{"h.0.a", DType::kUnknown, {most}, 0};
  const LayerTensor other{"h.1.a", DType::kUnknown, {most}, 0};
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [&] {
                         (void)summarize_layers({huge, other});
                       }),
              ::testing::HasSubstr("overflow"));
}

}  // namespace
}  // namespace accel::ckpt
