#include "ckpt/plan/weight_files.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace accel::ckpt {
namespace {

using Shards = std::vector<std::vector<std::size_t>>;

const WeightFiles kModel{"model", ".safetensors"};

// int8 tensors of these sizes in bytes, called t0, t1, ...
OutputState state_of(const std::vector<std::int64_t>& sizes) {
  OutputState state;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    state.tensors.push_back({{"t" + std::to_string(i)}, i, DType::kInt8, {sizes[i]}, std::nullopt});
  }
  return state;
}

TEST(WeightFilesTest, Names) {
  EXPECT_EQ(kModel.single(), "model.safetensors");
  EXPECT_EQ(kModel.index(), "model.safetensors.index.json");
  EXPECT_EQ(kModel.shard(0, 3), "model-00001-of-00003.safetensors");
  EXPECT_EQ(kModel.shard(99'998, 99'999), "model-99999-of-99999.safetensors");
}

TEST(WeightFilesTest, WhatBelongs) {
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
        "model-00009-of-00003.safetensors", "model-00001-of-000003.safetensors"}) {
    EXPECT_TRUE(kModel.belongs(name)) << name;
  }
  for (const char* name :
       {"", "model", "models.safetensors", "model-.safetensors", "model-0001-of-00003.safetensors",
        "model-00001-of-0000003.safetensors", "model-00001-of-0000x.safetensors",
        "model-00001_of-00003.safetensors", "xmodel-00001-of-00003.safetensors", "model-00001-of-00003.bin",
        "model-00001-of-00003.safetensors.part", "model.safetensors.index", ".safetensors",
        "pytorch_model.safetensors", "model.bin.index.json"}) {
    EXPECT_FALSE(kModel.belongs(name)) << name;
  }
  EXPECT_TRUE((WeightFiles{"pytorch_model", ".bin"}.belongs("pytorch_model-00002-of-00002.bin")));
}

RC_GTEST_PROP(WeightFilesPropertyTest, AllItsNamesBelong, ()) {
  const auto shards = *rc::gen::inRange<std::size_t>(1, 100'000);
  RC_ASSERT(kModel.belongs(kModel.shard(*rc::gen::inRange<std::size_t>(0, shards), shards)));
}

TEST(SplitTest, AsTransformersExplains) {
  EXPECT_EQ(split_into_shards(state_of({6, 6, 2, 6, 2, 2}), 10), (Shards{{0}, {1, 2}, {3, 4, 5}}));
}

TEST(SplitTest, ATensorAboveTheLimitIsAloneAndComesFirst) {
  EXPECT_EQ(split_into_shards(state_of({3, 11, 4, 4}), 10), (Shards{{1}, {0, 2}, {3}}));
  EXPECT_EQ(split_into_shards(state_of({11}), 10), (Shards{{0}}));
  EXPECT_EQ(split_into_shards(state_of({11, 12}), 10), (Shards{{0}, {1}}));
}

TEST(SplitTest, TheLimitItselfFits) {
  EXPECT_EQ(split_into_shards(state_of({10, 0, 10}), 10), (Shards{{0, 1}, {2}}));
  EXPECT_EQ(split_into_shards(state_of({5, 5, 1}), 10), (Shards{{0, 1}, {2}}));
}

TEST(SplitTest, WithoutALimitThereIsOneShard) {
  EXPECT_EQ(split_into_shards(state_of({5, 500, 1}), 0), (Shards{{0, 1, 2}}));
  EXPECT_EQ(split_into_shards(state_of({}), 0), (Shards{{}}));
  EXPECT_EQ(split_into_shards(state_of({}), 10), (Shards{{}}));
}

TEST(SplitTest, TiedTensorsCountNothing) {
  OutputState state = state_of({6, 6, 4});
  state.tensors[1].tied_to = 0;
  EXPECT_EQ(split_into_shards(state, 10), (Shards{{0, 2}}));
}

TEST(SplitTest, CountsWhatIsWritten) {
  OutputState state = state_of({3, 3});
  EXPECT_EQ(split_into_shards(state, 10).size(), 1U);
  state.tensors[1].dtype = DType::kFloat64;
  EXPECT_EQ(split_into_shards(state, 10).size(), 2U);
}

// Does what split_torch_state_dict_into_shards of huggingface_hub does.
Shards peer_split(const std::vector<std::int64_t>& sizes, std::int64_t most) {
  Shards shards;
  std::vector<std::size_t> current;
  std::int64_t current_bytes = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > most) {
      shards.push_back({i});
      continue;
    }
    if (current_bytes + sizes[i] > most) {
      shards.push_back(current);
      current.clear();
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += sizes[i];
  }
  if (!current.empty()) shards.push_back(current);
  return shards;
}

RC_GTEST_PROP(SplitPropertyTest, AsHuggingFaceHub, ()) {
  const auto sizes = *rc::gen::nonEmpty(
      rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 20)));
  const auto most = *rc::gen::inRange<std::int64_t>(1, 25);
  RC_ASSERT(split_into_shards(state_of(sizes), static_cast<std::uint64_t>(most)) == peer_split(sizes, most));
}

TEST(IndexJsonTest, Bytes) {
  OutputState state = state_of({3, 5, 5});
  state.tensors[1].dtype = DType::kBFloat16;
  state.tensors[2].tied_to = 1;
  EXPECT_EQ(index_json(state, {{"t1", "model-00002-of-00002.safetensors"}, {"h.\"0\"\x7f\xc3\xa4", "m"}}),
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_parameters\": 8,\n"
            "    \"total_size\": 13\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"h.\\\"0\\\"\\u007f\\u00e4\": \"m\",\n"
            "    \"t1\": \"model-00002-of-00002.safetensors\"\n"
            "  }\n"
            "}\n");
}

}  // namespace
}  // namespace accel::ckpt
