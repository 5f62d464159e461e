#include "structure/model_notes.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ModelNotesTest, EveryPartMayBeMissing) {
  EXPECT_THAT(parse_notes("").layer_classes, IsEmpty());
  EXPECT_THAT(parse_notes("{}").non_persistent, IsEmpty());
  const ModelNotes notes =
      parse_notes(R"({"layer_classes": ["Block"], "non_persistent": ["rope.table"], "config": {"a": 1}})");
  EXPECT_THAT(notes.layer_classes, ElementsAre("Block"));
  EXPECT_THAT(notes.non_persistent, ElementsAre("rope.table"));
}

TEST(ModelNotesTest, WhatIsNoNotesIsAUsageError) {
  for (const char* text : {"{", "[]", "{\"layer_classes\": 1}"}) {
    try {
      (void)parse_notes(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.message(), HasSubstr("accel.json"));
    }
  }
}

TEST(ModelNotesTest, TheConfigurationsClassesWin) {
  const ModelNotes notes{{"Block"}, {}};
  EXPECT_THAT(with_notes({}, notes).transformer_layer_cls_to_wrap, ElementsAre("Block"));
  core::FsdpConfig config;
  config.transformer_layer_cls_to_wrap = {"Mine"};
  EXPECT_THAT(with_notes(config, notes).transformer_layer_cls_to_wrap, ElementsAre("Mine"));
}

TEST(ModelNotesTest, AnErrorSaysWhoNamesTheClasses) {
  const ModelNotes notes{{"Block"}, {}};
  core::FsdpConfig config;
  config.wrap_origin = "a.yaml:1:2: 'fsdp_config.auto_wrap_policy: TRANSFORMER_BASED_WRAP'";
  EXPECT_EQ(with_notes(config, {}).wrap_origin, config.wrap_origin);
  EXPECT_EQ(with_notes(config, notes).wrap_origin, "the model file's accel.json, 'layer_classes'");
  config.transformer_layer_cls_to_wrap = {"Mine"};
  EXPECT_EQ(with_notes(config, notes).wrap_origin, config.wrap_origin);
}

}  // namespace
}  // namespace accel
