#include "structure/model_notes.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ModelNotesTest, EveryPartMayBeMissing) {
  EXPECT_THAT(parse_notes("").layer_classes, IsEmpty());
  EXPECT_THAT(parse_notes("{}").non_persistent, IsEmpty());
  EXPECT_EQ(parse_notes("{}").weight_conversions, "");
  EXPECT_EQ(parse_notes(R"({"weight_conversions": [{"name": "a", "from": "b"}]})").weight_conversions,
            R"([{"from":"b","name":"a"}])");
  const ModelNotes notes =
      parse_notes(R"({"layer_classes": ["Block"], "non_persistent": ["rope.table"], "config": {"a": 1}})");
  EXPECT_THAT(notes.layer_classes, ElementsAre("Block"));
  EXPECT_THAT(notes.outputs, IsEmpty());
  EXPECT_THAT(parse_notes(R"({"outputs": ["logits", "loss"]})").outputs, ElementsAre("logits", "loss"));
  EXPECT_THAT(notes.non_persistent, ElementsAre("rope.table"));
}

TEST(ModelNotesTest, LabelsAndDtype) {
  EXPECT_FALSE(parse_notes("{}").shifts_labels);
  EXPECT_EQ(parse_notes("{}").dtype, "");
  const ModelNotes notes = parse_notes(R"({"shifts_labels": true, "dtype": "bfloat16"})");
  EXPECT_TRUE(notes.shifts_labels);
  EXPECT_EQ(notes.dtype, "bfloat16");
}

TEST(ModelNotesTest, TheConfigurationOfAnAdapterIsAFileOfItsOwn) {
  EXPECT_EQ(parse_notes("{}").adapter_config, "");
  EXPECT_EQ(parse_notes(R"({"adapter_config": {"r": 4, "peft_type": "LORA"}})").adapter_config,
            "{\n  \"peft_type\": \"LORA\",\n  \"r\": 4\n}\n");
}

TEST(ModelNotesTest, APlanOfTensorParallelism) {
  EXPECT_THAT(parse_notes("{}").tp_plan, IsEmpty());
  EXPECT_EQ(parse_notes("{}").tp_heads, 0);
  const ModelNotes notes = parse_notes(
      R"({"tp_plan": {"lm_head": "colwise_gather_output", "layers.*.up": "colwise"}, "tp_heads": 4})");
  EXPECT_THAT(notes.tp_plan,
              ElementsAre(Pair("layers.*.up", "colwise"), Pair("lm_head", "colwise_gather_output")));
  EXPECT_EQ(notes.tp_heads, 4);
}

TEST(ModelNotesTest, WhatIsNoNotesIsAUsageError) {
  for (const char* text :
       {"{", "[]", "{\"layer_classes\": 1}", "{\"shifts_labels\": \"yes\"}", "{\"dtype\": \"bf16\"}",
        R"({"adapter_config": "LORA"})", R"({"adapter_config": {"r": 4}})",
        R"({"tp_plan": {"a": "colwise"}})", R"({"tp_plan": {"a": 1}, "tp_heads": 2})",
        R"({"tp_plan": ["a"], "tp_heads": 2})", R"({"tp_plan": {}, "tp_heads": 2})",
        R"({"tp_plan": {"a": "colwise"}, "tp_heads": 0})",
        R"({"tp_plan": {"a": "colwise"}, "tp_heads": 2.5})"}) {
    try {
      (void)parse_notes(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.message(), HasSubstr("accel.json"));
    }
  }
}

}  // namespace
}  // namespace accel
