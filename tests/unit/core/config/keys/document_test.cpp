#include "core/config/keys/document.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace accel::config {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// A configuration in which no value is its default.
Config unusual_config() {
  Config config;
  config.distributed_type = DistributedType::kFsdp;
  config.mixed_precision = "bf16";
  config.fsdp.precision = {"bfloat16", "float32", "float16", "float64", "half"};
  config.fsdp.version = 2;
  config.fsdp.replicate_size = 2;
  config.fsdp.sequence_size = 4;
  config.fsdp.tp_size = 4;
  config.fsdp.reshard_after_forward = false;
  config.fsdp.reshard_size = 4;
  config.fsdp.forward_prefetch = false;
  config.fsdp.backward_prefetch = false;
  config.fsdp.prefetch_depth = 3;
  config.fsdp.activation_checkpointing = true;
  config.fsdp.activation_offload = true;
  config.fsdp.offload_params = true;
  config.fsdp.auto_wrap_policy = WrapPolicy::kTransformer;
  config.fsdp.min_num_params = 12345;
  config.fsdp.transformer_layer_cls_to_wrap = {"Block", "Head"};
  config.fsdp.wrap_origin = "a.yaml:1:2: 'classes'";
  config.fsdp.ignored_modules = "h.0";
  config.fsdp.ignored_origin = "a.yaml:3:4: 'ignored'";
  config.launch.num_processes = 8;
  config.launch.num_machines = 2;
  config.launch.machine_rank = 1;
  config.launch.local_processes = 4;
  config.launch.main_process_ip = "10.0.0.1";
  config.launch.main_process_port = 0;
  config.launch.run_id = "job-17";
  config.launch.store_port = 29501;
  config.launch.rendezvous_timeout_s = 12;
  config.launch.min_machines = 2;
  config.launch.last_call_timeout_s = 40;
  config.launch.heartbeat_timeout_s = 25;
  config.launch.lock_timeout_s = 90;
  config.launch.use_cpu = true;
  config.launch.binds_cpus = true;
  config.launch.gpu_ids = {3, 1};
  config.launch.backend = Backend::kGloo;
  config.launch.max_restarts = 2;
  config.launch.preflight = false;
  config.launch.directory = "/where/it/runs";
  config.launch.hang_timeout_s = 9.5;
  config.launch.log_max_bytes = 5'000'000'000;
  config.launch.log_files = 7;
  config.launch.tee = {-1, 3};
  config.launch.expandable_segments = true;
  config.launch.grace_period_s = 1.5;
  config.launch.collective_timeout_s = 77;
  config.launch.log_dir = "logs/here";
  config.launch.worker = "build/accel-worker";
  TrainingConfig training;
  training.model = {"gpt.pt", "weights", {{"^h", "layers"}}, true, 0.02, {"a", "b"}, "model",
                    "t",      "1",       {{"aux", "2"}},     -1,   0.1,  {1, 2},     1e-4,
                    "always", 255};
  training.data = {{"text", "data/*.txt", 256, "uint16", "best_fit", 300, 40, {{"a.txt", 0.5}}, 8},
                   DataSource{"tokens", "eval.bin", 128, "uint32", "none", 301, 41, {}, 16},
                   {{"code", "code.bin"}, {"wiki", "wiki.bin"}},
                   8,
                   false,
                   false,
                   false};
  training.optimizer = {"lion",
                        3e-4,
                        {0.1, std::array{0.9, 0.95}, 1e-7, 0.8, 0.2, true, true, 0.7, true, 0.3, 0.4, 1e-4,
                         -0.7, 1.5, "original"},
                        {"bias", "norm"},
                        {{"^a", 0.5, 0.25, false, "sgd"}, {"b$", {}, {}, true, ""}}};
  training.lr_scheduler = {"cosine",
                           100,
                           0.1,
                           2000,
                           1.5,
                           1e-6,
                           2,
                           7,
                           0.2,
                           9,
                           "cosine",
                           "linear",
                           {0.5, 3, 1e-3, "abs", 4, 1e-5, 0.9, 5, 60}};
  training.max_steps = 1000;
  training.epochs = 7;
  training.gradient_accumulation_steps = 4;
  training.loss_mean = "tokens";
  training.max_grad_norm = 1.0 / 3.0;
  training.skip_nonfinite = true;
  training.grad_scaler = {1024, 4, 0.25, 7};
  training.float8 = {Float8Recipe::kRowwise, {"head", "gate"}, false};
  training.parallel = {{{"layers.*.q", "colwise"}}};
  training.compile = {"INDUCTOR", true};
  training.ddp = {
      CommHookType::kPowerSgd, CommHookType::kFp16, {4, 10, 1.5, false, false, 1e-8, 0xFFFF'FFFF}};
  training.eval_every = 100;
  training.best_metric = "wiki_accuracy";
  training.early_stopping = {5, 0.125};
  training.tf32 = true;
  training.log_every = 1;
  training.seed = 0xFFFF'FFFF'FFFF'FFFFULL;
  training.output_dir = "runs/gpt";
  training.checkpoint = {200,
                         1.5,
                         true,
                         3,
                         true,
                         "none",
                         VerifyOnResume::kFull,
                         true,
                         true,
                         "runs/a/checkpoints/checkpoint_7",
                         false,
                         7,
                         StateDictType::kLocal,
                         true,
                         {"head", "lora_"},
                         true};
  training.profile = {5, 8};
  training.tensorboard = true;
  training.metrics_command = {"sh", "bridge.sh"};
  training.only_evaluates = true;
  config.training = training;
  return config;
}

std::string error_of(const json& document) {
  try {
    (void)config_from_json(document);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "no error";
}

TEST(ConfigDocumentTest, RoundTripsEveryFieldThroughText) {
  const json document = config_to_json(unusual_config());
  const Config back = config_from_json(json::parse(document.dump()));
  EXPECT_EQ(config_to_json(back), document);
  EXPECT_EQ(back.training->max_grad_norm, 1.0 / 3.0);
  EXPECT_EQ(back.training->seed, 0xFFFF'FFFF'FFFF'FFFFULL);
  EXPECT_EQ(back.fsdp.transformer_layer_cls_to_wrap, (std::vector<std::string>{"Block", "Head"}));
  EXPECT_EQ(back.training->data.eval->path, "eval.bin");
  EXPECT_EQ(back.training->data.eval_sets.at("wiki"), "wiki.bin");
  EXPECT_EQ(back.training->model.rename.at(0).replacement, "layers");
  EXPECT_EQ(back.training->data.train.mixture.at(0).weight, 0.5);
  EXPECT_EQ(back.launch.gpu_ids, (std::vector<int>{3, 1}));
  // A bool with two choices has their names; one that resolve/ computes from three has not.
  EXPECT_EQ(document["training"]["checkpoint"]["on_failure"], "continue");
  EXPECT_EQ(document["fsdp_config"]["backward_prefetch"], false);
}

TEST(ConfigDocumentTest, EveryFieldDiffersFromItsDefaultInTheTestAbove) {
  Config plain;
  plain.training = TrainingConfig{};
  plain.training->data.eval = DataSource{};
  const json defaults = config_to_json(plain).flatten();
  const json unusual = config_to_json(unusual_config()).flatten();
  for (const auto& [path, value] : defaults.items()) {
    if (path == "/training/optimizer/type" || path == "/training/optimizer/betas/0") continue;
    if (!unusual.contains(path)) continue;
    EXPECT_NE(unusual.at(path), value) << path;
  }
}

TEST(ConfigDocumentTest, AbsentTrainingStaysAbsent) {
  const Config back = config_from_json(config_to_json(Config{}));
  EXPECT_FALSE(back.training.has_value());
}

TEST(ConfigDocumentTest, RejectsAMissingField) {
  json document = config_to_json(unusual_config());
  document["training"]["optimizer"].erase("lr");
  EXPECT_THAT(error_of(document), HasSubstr("'training.optimizer.lr': is missing"));
}

TEST(ConfigDocumentTest, RejectsAnUnknownField) {
  json document = config_to_json(unusual_config());
  document["fsdp_config"]["extra"] = 1;
  EXPECT_THAT(error_of(document), HasSubstr("'fsdp_config.extra': is not known"));
}

TEST(ConfigDocumentTest, RejectsWrongTypesAndRanges) {
  struct Case {
    json::json_pointer at;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {json::json_pointer("/training/max_steps"), "many", "'training.max_steps': expected an integer"},
      {json::json_pointer("/training/max_steps"), 1.5, "'training.max_steps': expected an integer"},
      {json::json_pointer("/num_processes"), 5'000'000'000LL, "5000000000 is out of range"},
      {json::json_pointer("/training/seed"), -1, "-1 is out of range"},
      {json::json_pointer("/use_cpu"), 1, "'use_cpu': expected true or false"},
      {json::json_pointer("/fsdp_config/auto_wrap_policy"), "WRAP",
       "'fsdp_config.auto_wrap_policy': 'WRAP' is not known"},
      {json::json_pointer("/training/optimizer/betas"), json::array({0.9}), "expected 2 items, found 1"},
      {json::json_pointer("/training/model/inputs"), "ids", "expected an array, found string"},
      {json::json_pointer("/training/model"), nullptr, "expected an object, found null"},
      {json::json_pointer("/training/optimizer/lr"), "fast", "expected a number"},
      {json::json_pointer("/training/model/rename/0"), {{"a", 1}, {"b", 2}}, "expected a pattern"},
      {json::json_pointer("/training/model/rename/0/pattern"), 1, "rename[0].pattern': expected a string"},
      {json::json_pointer("/mpirun_config"), json::object(), "'mpirun_config': is not known"},
  };
  for (const Case& c : cases) {
    json document = config_to_json(unusual_config());
    document[c.at] = c.value;
    EXPECT_THAT(error_of(document), HasSubstr(c.message)) << c.at;
  }
  EXPECT_THAT(error_of(json::array()), HasSubstr("expected an object, found array"));
}

}  // namespace
}  // namespace accel::config
