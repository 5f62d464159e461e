#include "ckpt/store/adapter_names.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace accel::ckpt {
namespace {

TEST(AdapterNamesTest, GivesTheNamesOfPeftsFiles) {
  const std::pair<const char*, const char*> rows[] = {
      {"base_model.model.q_proj.lora_A.default.weight", "base_model.model.q_proj.lora_A.weight"},
      {"base_model.model.q_proj.lora_B.default.bias", "base_model.model.q_proj.lora_B.bias"},
      {"base_model.model.embed.lora_embedding_A.default", "base_model.model.embed.lora_embedding_A"},
      {"base_model.model.lm_head.modules_to_save.default.weight", "base_model.model.lm_head.weight"},
      {"base_model.model.head.modules_to_save.default.0.bias", "base_model.model.head.0.bias"},
      {"base_model.model.q_proj.lora_magnitude_vector.default.weight",
       "base_model.model.q_proj.lora_magnitude_vector"},
      {"model.default.layers.lora_A.default.weight", "model.default.layers.lora_A.weight"},
      {"model.default_head.weight", "model.default_head.weight"},
      {"default", "default"},
      {"weight", "weight"},
  };
  for (const auto& [fqn, name] : rows) EXPECT_EQ(adapter_file_name(fqn), name);
}

TEST(AdapterNamesTest, OriginalsOfTrainedModulesAreKnown) {
  EXPECT_TRUE(is_original_module("base_model.model.lm_head.original_module.weight"));
  EXPECT_FALSE(is_original_module("base_model.model.lm_head.modules_to_save.default.weight"));
  EXPECT_FALSE(is_original_module("original_module_of.weight"));
}

TEST(AdapterNamesTest, FindsAnAdapterOfAnotherName) {
  EXPECT_EQ(other_adapter_of("base_model.model.q.lora_A.mine.weight"), "mine");
  EXPECT_EQ(other_adapter_of("base_model.model.e.lora_embedding_A.mine"), "mine");
  EXPECT_EQ(other_adapter_of("base_model.model.lm_head.modules_to_save.mine.weight"), "mine");
  for (const char* fqn :
       {"base_model.model.q.lora_A.default.weight", "base_model.model.e.lora_embedding_A.default",
        "lm_head.modules_to_save.default.weight", "attn.q.lora_A", "attn.q.lora_A.weight", "q.weight"})
    EXPECT_FALSE(other_adapter_of(fqn).has_value()) << fqn;
}

TEST(AdapterNamesTest, KnowsAnAdapterFromAModelThatHasOne) {
  EXPECT_TRUE(are_adapter({"base_model.model.q.lora_A.weight", "base_model.model.lm_head.weight"}));
  EXPECT_FALSE(
      are_adapter({"base_model.model.q.lora_A.default.weight", "base_model.model.q.base_layer.weight"}));
  EXPECT_TRUE(are_adapter({"base_model.model.q.lora_A.weight", "base_model.model.q.base_layer.bias"}));
  EXPECT_FALSE(are_adapter({"attn.q.weight", "attn.q.lora_A", "attn.q.lora_B"}));
  EXPECT_FALSE(are_adapter({"model.q.weight"}));
  EXPECT_FALSE(are_adapter({}));
}

}  // namespace
}  // namespace accel::ckpt
