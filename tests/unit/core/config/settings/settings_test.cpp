#include "core/config/settings/settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.hpp"

namespace accel::config {
namespace {

using ::testing::HasSubstr;

Settings read(std::string_view text) {
  return settings_from_yaml(parse_yaml(text, {Origin::Layer::kFile, "a.yaml"}));
}

template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.advice().empty() ? error.message() : error.message() + " | " + error.advice();
  }
  return "no error";
}

struct Case {
  const char* yaml;
  const char* error;
};

class SchemaErrorTest : public ::testing::TestWithParam<Case> {};

TEST_P(SchemaErrorTest, PointsAtThePlace) {
  EXPECT_EQ(error_of([] { read(GetParam().yaml); }), GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    UnknownKeys, SchemaErrorTest,
    ::testing::Values(
        Case{"mixed_precison: 'no'\n",
             "a.yaml:1:1: unknown key 'mixed_precison' at the top level | did you mean 'mixed_precision'?"},
        Case{"use_cpu: true\nfsdp_config:\n  fsdp_verson: 2\n",
             "a.yaml:3:3: unknown key 'fsdp_verson' in 'fsdp_config' | did you mean 'fsdp_version'?"},
        Case{"training:\n  optimizer: {type: adamw, lrr: 1}\n",
             "a.yaml:2:28: unknown key 'lrr' in 'training.optimizer' | did you mean 'lr'?"},
        Case{"use_cpu: true\nfsdp_version: 2\n",
             "a.yaml:2:1: unknown key 'fsdp_version' at the top level | it belongs below 'fsdp_config', "
             "indented"},
        Case{
            "training: {save_steps: 10}\n",
            "a.yaml:1:12: unknown key 'save_steps' in 'training' | what transformers' TrainingArguments call "
            "'save_steps' is 'training.checkpoint.every'"},
        Case{"training:\n  optimizer: {type: adamw, warmup_steps: 5}\n",
             "a.yaml:2:28: unknown key 'warmup_steps' in 'training.optimizer' | did you mean "
             "'training.lr_scheduler.warmup_steps'?"},
        Case{"training:\n  model:\n    init: {mean: 1}\n",
             "a.yaml:3:12: unknown key 'mean' in 'training.model.init' | known keys: std"},
        Case{"fsdp_config:\n  fsdp_: 2\n",
             "a.yaml:2:3: unknown key 'fsdp_' in 'fsdp_config' | known keys: fsdp_activation_checkpointing, "
             "fsdp_activation_checkpointing_offload, fsdp_auto_wrap_policy, fsdp_backward_prefetch, "
             "fsdp_cpu_ram_efficient_loading, fsdp_forward_prefetch, fsdp_ignored_modules, "
             "fsdp_min_num_params, "
             "fsdp_offload_params, fsdp_prefetch_depth, fsdp_reduce_dtype, fsdp_reshard_after_forward, "
             "fsdp_sharding_strategy, "
             "fsdp_state_dict_type, "
             "fsdp_sync_module_states, fsdp_transformer_layer_cls_to_wrap, fsdp_use_orig_params, "
             "fsdp_version"}));

INSTANTIATE_TEST_SUITE_P(
    Duplicates, SchemaErrorTest,
    ::testing::Values(Case{"use_cpu: true\nuse_cpu: true\n",
                           "a.yaml:2:1: 'use_cpu' is set twice | it is first set at a.yaml:1:1"},
                      Case{"fsdp_config:\n  fsdp_version: 2\n  version: 1\n",
                           "a.yaml:3:3: 'fsdp_config.version' is set twice | it is first set at a.yaml:2:3"},
                      Case{"training: {max_steps: 1}\ntraining: {max_steps: 2}\n",
                           "a.yaml:2:1: 'training' is set twice | it is first set at a.yaml:1:1"}));

INSTANTIATE_TEST_SUITE_P(
    WrongTypes, SchemaErrorTest,
    ::testing::Values(
        Case{"use_cpu: 3\n", "a.yaml:1:10: 'use_cpu' must be true or false, found '3'"},
        Case{"use_cpu: [true]\n", "a.yaml:1:10: 'use_cpu' must be true or false, found a list"},
        Case{"num_processes: two\n", "a.yaml:1:16: 'num_processes' must be an integer, found 'two'"},
        Case{"num_processes: 1.5\n", "a.yaml:1:16: 'num_processes' must be an integer, found '1.5'"},
        Case{"num_processes: '2'\n", "a.yaml:1:16: 'num_processes' must be an integer, found '2'"},
        Case{"num_processes: {a: 1}\n", "a.yaml:1:16: 'num_processes' must be an integer, found a section"},
        Case{"training:\n  max_steps: 99999999999999999999\n",
             "a.yaml:2:14: 'training.max_steps' must be an integer, found '99999999999999999999'"},
        Case{"training:\n  optimizer: {lr: fast}\n",
             "a.yaml:2:19: 'training.optimizer.lr' must be a number, found 'fast'"},
        Case{"training:\n  optimizer: {lr: .nan}\n",
             "a.yaml:2:19: 'training.optimizer.lr' must be a number, found '.nan'"},
        Case{"training:\n  optimizer: {lr: inf}\n",
             "a.yaml:2:19: 'training.optimizer.lr' must be a number, found 'inf'"},
        Case{"training:\n  optimizer: {betas: 0.9}\n",
             "a.yaml:2:22: 'training.optimizer.betas' must be a list of numbers, found '0.9'"},
        Case{"training:\n  optimizer: {betas: [0.9, x]}\n",
             "a.yaml:2:28: 'training.optimizer.betas' must be a list of numbers, found 'x'"},
        Case{"training:\n  model: {inputs: [[a]]}\n",
             "a.yaml:2:20: 'training.model.inputs' must be a list of strings, found a list"},
        Case{"training:\n  model: gpt.pt\n",
             "a.yaml:2:10: 'training.model' must be a section of keys, found 'gpt.pt'"},
        Case{"training: [1]\n", "a.yaml:1:11: 'training' must be a section of keys, found a list"},
        Case{"- a\n", "a.yaml:1:1: the file must be a section of keys, found a list"},
        Case{"training:\n  model: {rename: [a]}\n",
             "a.yaml:2:19: 'training.model.rename' must be a section of texts, found a list"},
        Case{"training:\n  model: {rename: {a: [b]}}\n",
             "a.yaml:2:23: 'training.model.rename' must be a section of texts, found a list"},
        Case{"training:\n  model: {rename: {a: b, a: c}}\n",
             "a.yaml:2:26: 'a' is set twice in 'training.model.rename'"},
        Case{"hello\n", "a.yaml:1:1: the file must be a section of keys, found 'hello'"},
        Case{"main_process_ip: [a]\n", "a.yaml:1:18: 'main_process_ip' must be a string, found a list"}));

INSTANTIATE_TEST_SUITE_P(
    Ranges, SchemaErrorTest,
    ::testing::Values(
        Case{"training:\n  max_steps: 0\n",
             "a.yaml:2:14: 'training.max_steps' must be at least 1, found '0'"},
        Case{"training:\n  max_grad_norm: 0\n",
             "a.yaml:2:18: 'training.max_grad_norm' must be greater than 0, found '0'"},
        Case{"training:\n  optimizer: {lr: -1.0}\n",
             "a.yaml:2:19: 'training.optimizer.lr' must be at least 0, found '-1.0'"},
        Case{"training:\n  optimizer: {betas: [0.9, 1.0]}\n",
             "a.yaml:2:28: 'training.optimizer.betas' must be less than 1, found '1.0'"},
        Case{"training:\n  grad_scaler: {init_scale: 1e39}\n",
             "a.yaml:2:29: 'training.grad_scaler.init_scale' must be at most 3.402823466e+38, found '1e39'"},
        Case{"training:\n  grad_scaler: {init_scale: 6e-5}\n",
             "a.yaml:2:29: 'training.grad_scaler.init_scale' must be at least 6.103515625e-05, found '6e-5'"},
        Case{"training:\n  grad_scaler: {growth_factor: 1e39}\n",
             "a.yaml:2:32: 'training.grad_scaler.growth_factor' must be at most 3.402823466e+38, found "
             "'1e39'"},
        Case{"training:\n  grad_scaler: {backoff_factor: 1e-5}\n",
             "a.yaml:2:33: 'training.grad_scaler.backoff_factor' must be at least 6.103515625e-05, found "
             "'1e-5'"},
        Case{"main_process_port: 65536\n",
             "a.yaml:1:20: 'main_process_port' must be less than 65536, found '65536'"},
        Case{"training:\n  data: {train: {sequence_length: 0}}\n",
             "a.yaml:2:35: 'training.data.train.sequence_length' must be at least 1, found '0'"}));

INSTANTIATE_TEST_SUITE_P(
    Choices, SchemaErrorTest,
    ::testing::Values(
        Case{"mixed_precision: bf61\n",
             "a.yaml:1:18: 'mixed_precision' must be one of no, fp16, bf16, fp8; found 'bf61' | did you mean "
             "'bf16'?"},
        Case{"fsdp_config: {fsdp_version: 3}\n",
             "a.yaml:1:29: 'fsdp_config.version' must be one of 1, 2; found '3'"},
        Case{"fsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WARP\n",
             "a.yaml:2:21: 'fsdp_config.auto_wrap_policy' must be one of TRANSFORMER_BASED_WRAP, "
             "SIZE_BASED_WRAP, "
             "NO_WRAP; found 'TRANSFORMER_BASED_WARP' | did you mean 'TRANSFORMER_BASED_WRAP'?"}));

TEST(ConfigSettingsTest, SpellingsOfValues) {
  const Settings s = read(
      "use_cpu: Yes\ndebug: 'false'\nmixed_precision: NO\nnum_processes: -1\nmain_process_port: null\n"
      "fsdp_config: {fsdp_min_num_params: 1e8, auto_wrap_policy: no_wrap, "
      "fsdp_transformer_layer_cls_to_wrap: 'A, B'}\n"
      "training: {optimizer: {lr: 3e-4, betas: [.9, 0.95]}, model: {inputs: [a, b], rename: {'^z\\.': 1, "
      "a.b: , c: ''}}}\n");
  EXPECT_EQ(s.get<bool>("use_cpu"), true);
  EXPECT_EQ(s.get<bool>("debug"), false);
  EXPECT_EQ(s.get<std::string>("mixed_precision"), "no");
  EXPECT_EQ(s.get<std::int64_t>("num_processes"), -1);
  EXPECT_FALSE(s.has("main_process_port"));
  EXPECT_EQ(s.get<std::int64_t>("fsdp_config.min_num_params"), 100'000'000);
  EXPECT_EQ(s.get<std::string>("fsdp_config.auto_wrap_policy"), "NO_WRAP");
  EXPECT_EQ(s.get<std::vector<std::string>>("fsdp_config.transformer_layer_cls_to_wrap"),
            (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(s.get<double>("training.optimizer.lr"), 3e-4);
  EXPECT_EQ(s.get<std::vector<double>>("training.optimizer.betas"), (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(s.get<Texts>("training.model.rename"), (Texts{{"^z\\.", "1"}, {"a.b", ""}, {"c", ""}}));
  EXPECT_EQ(text_of(s.find("training.model.rename")->value), "{^z\\.: 1, a.b: , c: }");
}

TEST(ConfigSettingsTest, KeysOfAbsentSystemsAreAcceptedUnread) {
  const Settings s = read(
      "tpu_env: []\ntpu_name: {a: b}\ndeepspeed_config: {zero_stage: 2, no_such_key: [1]}\n"
      "fp8_config: {fp8_margin: 1}\nmegatron_lm_config: {}\n");
  EXPECT_TRUE(s.has("deepspeed_config"));
  EXPECT_FALSE(s.has("megatron_lm_config"));
  EXPECT_TRUE(settings_from_assignment("deepspeed_config.no.such.key=1").has("deepspeed_config"));
}

TEST(ConfigSettingsTest, SystemsAreReadFromAFileThatIsWrongElsewhere) {
  const Settings s =
      systems_from_yaml(parse_yaml("no_such_key: 1\nuse_cpu: 7\nfsdp_config: 5\ndistributed_type: XLA\n",
                                   {Origin::Layer::kFile, "a.yaml"}));
  EXPECT_EQ(s.map().size(), 1U);
  EXPECT_EQ(s.get<std::string>("distributed_type"), "XLA");
  EXPECT_TRUE(systems_from_yaml(parse_yaml("[1]", {})).map().empty());
}

TEST(ConfigSettingsTest, AssignmentsGoThroughTheSameSchema) {
  const Settings s = settings_from_assignment("training.optimizer.betas=[0.8, 0.9]");
  EXPECT_EQ(s.get<std::vector<double>>("training.optimizer.betas"), (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(settings_from_assignment("fsdp_config.fsdp_version=2").get<std::int64_t>("fsdp_config.version"),
            2);
  EXPECT_EQ(settings_from_assignment("training.data.eval={format: text, path: a=b}")
                .get<std::string>("training.data.eval.path"),
            "a=b");
  EXPECT_EQ(settings_from_assignment("training.model.rename={a.b: c}").get<Texts>("training.model.rename"),
            (Texts{{"a.b", "c"}}));
  EXPECT_NE(settings_from_assignment("training.data.eval=null").find("training.data.eval"), nullptr);

  EXPECT_EQ(error_of([] { settings_from_assignment("training.optimizer.lrr=1"); }),
            "--set training.optimizer.lrr=1: unknown key 'lrr' in 'training.optimizer' | did you mean 'lr'?");
  EXPECT_EQ(error_of([] { settings_from_assignment("trainig.max_steps=1"); }),
            "--set trainig.max_steps=1: unknown key 'trainig' at the top level | did you mean 'training'?");
  EXPECT_EQ(error_of([] { settings_from_assignment("training.max_steps=x"); }),
            "--set training.max_steps=x: 'training.max_steps' must be an integer, found 'x'");
  EXPECT_THAT(error_of([] { settings_from_assignment("training.max_steps"); }),
              HasSubstr("expected KEY=VALUE"));
  EXPECT_THAT(error_of([] { settings_from_assignment("=1"); }), HasSubstr("expected KEY=VALUE"));
  EXPECT_THAT(error_of([] { settings_from_assignment("training=1"); }),
              HasSubstr("must be a section of keys"));
  EXPECT_THAT(error_of([] { settings_from_assignment("use_cpu.x=1"); }),
              HasSubstr("unknown key 'x' in 'use_cpu'"));
  EXPECT_THAT(error_of([] { settings_from_assignment("training.max_steps=[1"); }),
              HasSubstr("--set training.max_ste"));
}

TEST(ConfigSettingsTest, FlagsNameThemselvesInErrors) {
  EXPECT_EQ(error_of([] { settings_from_flag("num_processes", "two", "--num-processes two"); }),
            "--num-processes two: 'num_processes' must be an integer, found 'two'");
}

TEST(ConfigSettingsTest, ReadsAcceleratesVariables) {
  const std::map<std::string, std::string> variables = {
      {"ACCELERATE_USE_FSDP", "true"},   {"FSDP_VERSION", "2"},
      {"FSDP_OFFLOAD_PARAMS", "False"},  {"ACCELERATE_USE_CPU", "1"},
      {"FSDP_AUTO_WRAP_POLICY", "None"}, {"FSDP_TRANSFORMER_CLS_TO_WRAP", "A,B"}};
  const Environment environment = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const Settings s = settings_from_environment(environment);
  EXPECT_EQ(s.get<std::string>("distributed_type"), "FSDP");
  EXPECT_EQ(s.get<std::int64_t>("fsdp_config.version"), 2);
  EXPECT_EQ(s.get<bool>("fsdp_config.offload_params"), false);
  EXPECT_EQ(s.get<bool>("use_cpu"), true);
  EXPECT_FALSE(s.has("fsdp_config.auto_wrap_policy"));
  EXPECT_EQ(error_of([] {
              settings_from_environment([](const std::string& name) {
                return name == "FSDP_VERSION" ? std::optional<std::string>("new") : std::nullopt;
              });
            }),
            "environment variable FSDP_VERSION: 'fsdp_config.version' must be an integer, found 'new'");
}

TEST(ConfigSettingsTest, AVariableIsNotReadWhereItsKeyIsSet) {
  const Environment environment = [](const std::string& name) {
    return name == "FSDP_VERSION" || name == "ACCELERATE_USE_FSDP" ? std::optional<std::string>("new")
                                                                   : std::nullopt;
  };
  Settings above = settings_from_flag("fsdp_config.version", "2", "--fsdp-version 2");
  EXPECT_EQ(
      error_of([&] { settings_from_environment(environment, above); }),
      "environment variable ACCELERATE_USE_FSDP: 'ACCELERATE_USE_FSDP' must be true or false, found 'new'");
  above.add_below(settings_from_flag("distributed_type", "NO", "--distributed-type NO"));
  EXPECT_FALSE(settings_from_environment(environment, above).has("distributed_type"));
}

TEST(ConfigSettingsTest, ASwitchIsWhatAccelerateTakes) {
  const std::map<std::string, bool> words = {{"True", true},   {"1", true},  {"YES", true}, {"t", true},
                                             {"False", false}, {"0", false}, {"n", false}};
  for (const auto& [text, on] : words) {
    const auto variable = [value = text](const std::string& switched) {
      return settings_from_environment(
          [&](const std::string& name) { return name == switched ? std::optional(value) : std::nullopt; });
    };
    EXPECT_EQ(variable("ACCELERATE_USE_FSDP").has("distributed_type"), on) << text;
    EXPECT_EQ(variable("ACCELERATE_USE_CPU").get<bool>("use_cpu"), on) << text;
  }
}

TEST(ConfigSettingsTest, ReadsTheMeshsVariablesIfAcceleratesSwitchIsOn) {
  for (const bool on : {true, false}) {
    const Settings s = settings_from_environment([&](const std::string& name) -> std::optional<std::string> {
      if (name == "ACCELERATE_USE_PARALLELISM_CONFIG") return on ? "True" : "False";
      if (name == "PARALLELISM_CONFIG_DP_REPLICATE_SIZE") return "2";
      if (name == "PARALLELISM_CONFIG_TP_SIZE") return "1";
      return std::nullopt;
    });
    EXPECT_EQ(s.has("parallelism_config"), on);
    EXPECT_EQ(s.get<std::int64_t>("parallelism_config.dp_replicate_size"),
              on ? std::optional<std::int64_t>(2) : std::nullopt);
  }
}

}  // namespace
}  // namespace accel::config
