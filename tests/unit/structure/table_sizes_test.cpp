#include "structure/table_sizes.hpp"

#include <gtest/gtest.h>

namespace accel {
namespace {

TEST(TableSizesTest, NamesTellTokensFromPositions) {
  ModelStructure model;
  model.modules = {{"", "GPT"},
                   {"embed", "Module"},
                   {"embed.position_embeddings", "Embedding"},
                   {"embed.words", "ScaledEmbedding"},
                   {"embed.types", "Embedding"}};
  model.parameters = {{{"embed.position_embeddings.weight"}, {32, 8}, "float32"},
                      {{"head.weight", "embed.words.weight"}, {256, 8}, "float32"},
                      {{"embed.types.weight"}, {2, 8}, "float32"}};
  const TableSizes sizes = table_sizes(model);
  EXPECT_EQ(sizes.positions, 32);
  EXPECT_EQ(sizes.tokens, 256);
  EXPECT_EQ(sizes.least_tokens, 256) << "two kinds are no vocabulary";
}

TEST(TableSizesTest, ALargeTableBesideThatOfBytesIsNoVocabularyForSure) {
  ModelStructure model;
  model.modules = {{"", "Net"}, {"context", "Embedding"}, {"bytes", "Embedding"}};
  model.parameters = {{{"context.weight"}, {1024, 8}, "float32"}, {{"bytes.weight"}, {256, 8}, "float32"}};
  EXPECT_EQ(table_sizes(model).tokens, 1024);
  EXPECT_EQ(table_sizes(model).least_tokens, 256);
}

TEST(TableSizesTest, OtherModulesHaveNoTables) {
  ModelStructure model;
  model.modules = {{"", "Net"}, {"positions", "Linear"}, {"empty", "Embedding"}, {"wpe", "Embedding"}};
  model.parameters = {{{"positions.weight"}, {32, 8}, "float32"}, {{"wpe.weight"}, {32}, "float32"}};
  const TableSizes sizes = table_sizes(model);
  EXPECT_EQ(sizes.positions, std::nullopt);
  EXPECT_EQ(sizes.tokens, std::nullopt);
}

}  // namespace
}  // namespace accel
