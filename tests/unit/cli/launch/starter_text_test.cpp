#include <gmock/gmock.h>

#include <string>

#include "cli/launch/starter.hpp"
#include "core/config/settings/settings.hpp"
#include "core/config/settings/yaml.hpp"

namespace accel::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Starter starter() {
  Starter starter;
  starter.options.model = "gpt.pt";
  starter.class_name = "GPT";
  starter.elements = 1'234'567'890;
  starter.trainable = 1'234'567'890;
  starter.inputs = {{"ids", "input_ids"}};
  starter.data_format = &data_format("text");
  starter.data_path = "data.txt";
  starter.sequence_length = 128;
  return starter;
}

std::string joined(const Starter& starter, const std::optional<MemoryFootprint>& memory = {}) {
  std::string text;
  for (const std::string& line : text_of(starter, memory)) text += line + "\n";
  return text;
}

config::Settings settings_of(const Starter& starter) {
  return config::settings_from_yaml(
      config::parse_yaml(joined(starter), {config::Origin::Layer::kFile, "a.yaml"}));
}

TEST(StarterTextTest, EveryPathIsReadBackAsItIs) {
  for (const char* path : {"gpt.pt", "a b.pt", "it's.pt", "x: y #z.pt",
                           "true",   "No",     "1e5",     "-",
                           "",       " ",      ".inf",    "~",
                           "*.pt",   "&a",     "[a]",     "a\tb\n\"c\\.pt",
                           "ü.pt",   "1.5",    "0x10",    "runs/2024-01-01"}) {
    Starter named = starter();
    named.options.model = path;
    named.data_path = path;
    named.layer_classes = {"A", path};
    const config::Settings settings = settings_of(named);
    EXPECT_EQ(settings.get<std::string>("training.model.path"), path);
    EXPECT_EQ(settings.get<std::string>("training.data.train.path"), path);
  }
}

TEST(StarterTextTest, LinesFitOnAScreen) {
  for (const std::string& line : text_of(starter(), MemoryFootprint())) EXPECT_LE(line.size(), 110U) << line;
}

TEST(StarterTextTest, NumbersOfParametersAreGrouped) {
  EXPECT_THAT(joined(starter()), HasSubstr("1,234,567,890 parameters"));
  EXPECT_THAT(joined(starter()), Not(HasSubstr("are trained")));
  Starter frozen = starter();
  frozen.trainable = 999;
  EXPECT_THAT(joined(frozen), HasSubstr("of which 999 are trained"));
}

TEST(StarterTextTest, TheMemoryIsACommentAlone) {
  MemoryFootprint memory;
  memory.total_bytes = 5'000'000;
  EXPECT_THAT(joined(starter()), Not(HasSubstr("libtorch come on top")));
  EXPECT_THAT(joined(starter(), memory), HasSubstr("# The rank needs 5.00 MB;"));
  Starter several = starter();
  several.options.processes = 8;
  EXPECT_THAT(joined(several, memory), HasSubstr("# Each of 8 ranks needs 5.00 MB;"));
  EXPECT_EQ(settings_of(several).get<std::int64_t>("num_processes"), 8);
}

TEST(StarterTextTest, ClassesBecomeUnits) {
  Starter layers = starter();
  layers.layer_classes = {"Decoder", "Encoder"};
  EXPECT_THAT(joined(layers), HasSubstr("This is a guess from what repeats"));
  EXPECT_THAT(*settings_of(layers).get<std::vector<std::string>>("fsdp_config.transformer_layer_cls_to_wrap"),
              ElementsAre("Decoder", "Encoder"));
  layers.classes_are_noted = true;
  EXPECT_THAT(joined(layers), Not(HasSubstr("This is a guess from what repeats")));
  EXPECT_EQ(settings_of(starter()).get<std::string>("fsdp_config.auto_wrap_policy"), "NO_WRAP");
}

TEST(StarterTextTest, OnlyALargeModelOrOneIn16BitsIsSharded) {
  const auto type_of = [](const Starter& starter) {
    return settings_of(starter).get<std::string>("distributed_type");
  };
  Starter small = starter();
  small.elements = kMostCopiedElements + 1;
  EXPECT_EQ(type_of(small), "FSDP");
  small.elements = kMostCopiedElements;
  EXPECT_EQ(type_of(small), std::nullopt);
  EXPECT_FALSE(settings_of(small).has("fsdp_config"));
  small.options.sees_gpus = true;
  EXPECT_EQ(type_of(small), "MULTI_GPU");
  small.options.use_cpu = true;
  EXPECT_EQ(type_of(small), "MULTI_CPU");
  small.dtype = "float32";
  EXPECT_EQ(type_of(small), "MULTI_CPU");
  small.dtype = "float16";
  EXPECT_EQ(type_of(small), "FSDP");
}

TEST(StarterTextTest, AnAdapterGetsCheckpointsOfItsOwn) {
  Starter adapter = starter();
  EXPECT_FALSE(settings_of(adapter).has("training.checkpoint.adapter_only"));
  adapter.has_adapter = true;
  adapter.adapter_names = {"lora_"};
  EXPECT_EQ(settings_of(adapter).get<bool>("training.checkpoint.adapter_only"), true);
  EXPECT_EQ(settings_of(adapter).get<std::string>("training.checkpoint.export"), "safetensors");
  EXPECT_FALSE(settings_of(adapter).has("training.checkpoint.adapter_names"));
  adapter.adapter_names = {"it's", "lora_"};
  EXPECT_THAT(*settings_of(adapter).get<std::vector<std::string>>("training.checkpoint.adapter_names"),
              ElementsAre("it's", "lora_"));
}

TEST(StarterTextTest, DocumentsArePackedForAModelThatKeepsThemApart) {
  Starter chat = starter();
  chat.data_format = &data_format("documents");
  const auto packing = [&] { return settings_of(chat).get<std::string>("training.data.train.packing"); };
  EXPECT_EQ(packing(), "none");
  EXPECT_THAT(joined(chat), HasSubstr("a model without position_ids would mix"));
  chat.inputs.push_back({"position_ids", "position_ids"});
  EXPECT_EQ(packing(), "best_fit");
  EXPECT_THAT(joined(chat), Not(HasSubstr("The data have no field")));
  chat.inputs.push_back({"attention_mask", "attention_mask"});
  EXPECT_EQ(packing(), "none");
  EXPECT_THAT(joined(chat), Not(HasSubstr("The data have no field")));
}

TEST(StarterTextTest, InputsAndLossAreThoseOfTheModel) {
  Starter own = starter();
  own.inputs = {{"labels", "labels"}, {"ids", "input_ids"}, {"mask", "mask"}};
  own.is_own_loss = true;
  own.output = 1;
  const config::Settings settings = settings_of(own);
  EXPECT_THAT(*settings.get<std::vector<std::string>>("training.model.inputs"),
              ElementsAre("labels", "input_ids", "mask"));
  EXPECT_EQ(settings.get<std::string>("training.model.loss"), "model");
  EXPECT_EQ(settings.get<std::string>("training.model.output"), "1");
  EXPECT_THAT(joined(own), HasSubstr("The data have no field 'mask'"));
}

}  // namespace
}  // namespace accel::cli
