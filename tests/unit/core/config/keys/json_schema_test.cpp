#include "core/config/keys/json_schema.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/keys/keys.hpp"
#include "core/config/settings/settings.hpp"

namespace accel::config {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

/// The schema of a key; null if there is none.
Json at(const Json& schema, const std::string& path) {
  Json current = schema;
  for (const std::string& part : split(path, '.')) {
    const Json& properties = current["properties"];
    if (!properties.contains(part)) return nullptr;
    current = Json(properties[part]);
  }
  return current;
}

std::string error_of(const std::string& assignment) {
  try {
    (void)settings_from_assignment(assignment);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(JsonSchemaTest, SaysWhatItIs) {
  const Json schema = json_schema();
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["type"], Json({"object", "null"}));
}

TEST(JsonSchemaTest, HasEveryKeyAndClosesEverySection) {
  const Json schema = json_schema();
  EXPECT_EQ(schema["additionalProperties"], false);
  for (const auto table : key_tables()) {
    for (const Key& key : table) {
      const std::string path(key.path);
      EXPECT_TRUE(at(schema, path).is_object()) << path;
      for (std::size_t dot = path.rfind('.'); dot != std::string::npos && dot > 0;
           dot = path.rfind('.', dot - 1))
        EXPECT_EQ(at(schema, path.substr(0, dot))["additionalProperties"], false) << path;
    }
  }
}

TEST(JsonSchemaTest, HasNoKeyThatIsNotInTheTables) {
  const auto check = [](const auto& self, const Json& section, const std::string& path) -> void {
    const std::string_view prefix = section_prefix(path);
    for (const auto& [key, value] : section["properties"].items()) {
      const bool is_alias = value.contains("$ref");
      const std::string name = is_alias ? key.substr(prefix.size()) : key;
      const std::string longer = path.empty() ? name : path + "." + name;
      EXPECT_TRUE(find_key(longer) != nullptr || is_section(longer)) << longer;
      if (value.contains("properties")) self(self, value, longer);
    }
  };
  check(check, json_schema(), "");
}

TEST(JsonSchemaTest, OptionalPrefixesAreOtherNamesOfAKey) {
  const Json schema = json_schema();
  EXPECT_EQ(at(schema, "fsdp_config.fsdp_version"),
            Json({{"$ref", "#/properties/fsdp_config/properties/version"}}));
  EXPECT_EQ(schema[Json::json_pointer("/properties/fsdp_config/properties/version")]["enum"],
            Json({1, 2, nullptr}));
  EXPECT_TRUE(at(schema, "parallelism_config.parallelism_config_tp_size").contains("$ref"));
  EXPECT_TRUE(at(schema, "training.training_seed").is_null());
}

TEST(JsonSchemaTest, TypesAreThoseThatTheParserTakes) {
  const Json schema = json_schema();
  const auto type = [&](const char* path) { return at(schema, path)["type"]; };
  EXPECT_EQ(type("use_cpu"), Json({"boolean", "string", "null"}));
  EXPECT_EQ(type("num_processes"), Json({"integer", "null"}));
  EXPECT_EQ(type("training.optimizer.lr"), Json({"number", "null"}));
  EXPECT_EQ(type("training.model.output"), Json({"string", "number", "boolean", "null"}));
  EXPECT_EQ(type("training.checkpoint.every"), Json({"string", "number", "boolean", "null"}));
  EXPECT_EQ(type("training.model.inputs"), Json({"array", "string", "number", "boolean", "null"}));
  EXPECT_EQ(at(schema, "training.model.inputs")["items"]["type"], Json({"string", "number", "boolean"}));
  EXPECT_EQ(type("training.optimizer.betas"), Json({"array", "null"}));
  EXPECT_EQ(type("training.model.rename"), Json({"object", "null"}));
  EXPECT_FALSE(at(schema, "deepspeed_config").contains("type"));
}

TEST(JsonSchemaTest, RangesAreThoseOfTheTable) {
  const Json schema = json_schema();
  EXPECT_EQ(at(schema, "main_process_port")["exclusiveMaximum"], 65536);
  EXPECT_EQ(
      at(schema, "training.max_grad_norm").dump(),
      R"({"type":["number","null"],"exclusiveMinimum":0,"description":"Clips the gradient at this norm."})");
  EXPECT_EQ(at(schema, "launch.timeout")["minimum"], 1);
  EXPECT_EQ(at(schema, "launch.timeout")["maximum"], 1000000);
  EXPECT_EQ(at(schema, "training.optimizer.betas")["items"].dump(),
            R"({"type":["number"],"minimum":0,"exclusiveMaximum":1})");
  EXPECT_EQ(at(schema, "training.grad_scaler.backoff_factor")["minimum"], 0x1p-14);
}

TEST(JsonSchemaTest, DescriptionsSayWhatAKeyIsAndWhatIsSupported) {
  const Json schema = json_schema();
  const auto text = [&](const char* path) { return at(schema, path)["description"].get<std::string>(); };
  EXPECT_EQ(text("training.optimizer.lr"), "The learning rate.");
  EXPECT_THAT(text("training.model.path"), EndsWith("a .pt2 file of torch.export. Required."));
  EXPECT_THAT(text("fp8_config.backend"), HasSubstr("by itself. accel supports: AO."));
  EXPECT_THAT(text("training.ddp.comm_state_option.compression_stats_logging_frequency"),
              HasSubstr("It is not supported yet."));
  EXPECT_THAT(text("same_network"),
              HasSubstr("It has no effect: machines find each other by main_process_ip."));
  EXPECT_EQ(text("deepspeed_config"), "It is for a system that accel does not have.");
  EXPECT_THAT(text("launch.min_machines"), HasSubstr("Default: num_machines."));
}

TEST(JsonSchemaTest, DefaultsAreThoseOfTheConfig) {
  const Json schema = json_schema();
  const auto value = [&](const char* path) { return at(schema, path).value("default", Json("none")).dump(); };
  EXPECT_EQ(value("training.ddp.comm_hook"), R"("no")");
  EXPECT_EQ(value("training.checkpoint.on_failure"), R"("stop")");
  EXPECT_EQ(value("launch.timeout"), "1800");
  EXPECT_EQ(value("training.metrics.jsonl"), "true");
  EXPECT_EQ(value("parallelism_config.tp_size"), "1");
  EXPECT_EQ(value("training.model.inputs"), R"(["input_ids"])");
  EXPECT_EQ(value("training.max_grad_norm"), R"("none")");
  EXPECT_EQ(value("training.max_steps"), R"("none")");
  EXPECT_EQ(value("launch.log_dir"), R"("none")");
}

/// Every key that accel acts on says what it is.
TEST(JsonSchemaTest, KeysThatWorkHaveHelp) {
  for (const auto table : {run_keys(), training_keys()}) {
    for (const Key& key : table) {
      EXPECT_TRUE(key.member.reach == nullptr || !key.help.empty()) << key.path;
      EXPECT_FALSE(key.help.ends_with('.')) << key.path;
      EXPECT_FALSE(key.standard.ends_with('.')) << key.path;
    }
  }
}

TEST(JsonSchemaTest, TheParserAndTheSchemaHaveTheSameChoices) {
  const Json schema = json_schema();
  int fields = 0;
  for (const auto table : key_tables()) {
    for (const Key& key : table) {
      if (key.choices.empty()) {
        EXPECT_FALSE(at(schema, std::string(key.path)).contains("enum")) << key.path;
        continue;
      }
      ++fields;
      std::vector<std::string> listed;
      const Json choices = at(schema, std::string(key.path))["enum"];
      for (const Json& value : choices)
        if (!value.is_null()) listed.push_back(value.is_string() ? value.get<std::string>() : value.dump());
      EXPECT_EQ(listed, split(key.choices, '|')) << key.path;
      for (const std::string& choice : listed)
        EXPECT_EQ(error_of(fmt::format("{}={}", key.path, choice)), "no error");
      EXPECT_THAT(error_of(fmt::format("{}={}", key.path, key.type == Type::kInt ? "77" : "zzz")),
                  HasSubstr("must be one of"));
    }
  }
  EXPECT_GE(fields, 20);
}

}  // namespace
}  // namespace accel::config
