#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "config_file_fixture.hpp"

namespace accel::config {
namespace {

using ConfigFileTest = testing::ConfigFileTest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST_F(ConfigFileTest, DefaultsAreThoseOfTheDesign) {
  const Config c = load(training()).config;
  EXPECT_EQ(c.distributed_type, DistributedType::kNo);
  EXPECT_EQ(c.mixed_precision, "no");
  EXPECT_EQ(c.fsdp.version, 1);
  EXPECT_TRUE(c.fsdp.reshard_after_forward);
  EXPECT_EQ(c.fsdp.auto_wrap_policy, WrapPolicy::kNone);
  EXPECT_EQ(c.launch.num_processes, 1);
  EXPECT_TRUE(c.launch.use_cpu);
  EXPECT_THAT(c.launch.gpu_ids, IsEmpty());
  EXPECT_EQ(c.launch.main_process_port, 0);
  EXPECT_EQ(c.launch.grace_period_s, 30);
  EXPECT_EQ(c.launch.collective_timeout_s, 1800);
  EXPECT_EQ(c.training->output_dir, "runs/run");
  EXPECT_EQ(c.training->optimizer.lr, 1e-3);
  EXPECT_EQ(c.training->data.batch_size, 1);
  EXPECT_FALSE(c.training->data.eval.has_value());
  EXPECT_FALSE(c.training->max_grad_norm.has_value());
}

TEST_F(ConfigFileTest, FlagsBeatTheFileWhichBeatsTheEnvironment) {
  variables_ = {{"FSDP_VERSION", "2"}, {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"}};
  const std::string yaml = "fsdp_config: {fsdp_version: 1}\n" + training(", seed: 1");
  const Config c = load(yaml, {"training.seed=2", "training.seed=3"}).config;
  EXPECT_EQ(c.fsdp.version, 1);
  EXPECT_EQ(c.training->gradient_accumulation_steps, 4);
  EXPECT_EQ(c.training->seed, 3U);
  EXPECT_EQ(load(training()).config.fsdp.version, 2);
}

// Accelerate's older key for mixed_precision.
TEST_F(ConfigFileTest, Fp16IsMixedPrecisionInItsOwnLayer) {
  const auto precision = [&](const std::string& yaml, const std::vector<std::string>& assignments = {}) {
    return load(yaml + "\n" + training(), assignments).config.mixed_precision;
  };
  EXPECT_EQ(precision("fp16: true"), "fp16");
  EXPECT_EQ(precision("fp16: true\nmixed_precision: fp16"), "fp16");
  EXPECT_EQ(precision("fp16: false\nmixed_precision: bf16"), "bf16");
  EXPECT_EQ(precision("fp16: true", {"mixed_precision=bf16"}), "bf16");
  EXPECT_EQ(precision("mixed_precision: bf16", {"fp16=true"}), "fp16");
  EXPECT_EQ(precision("fp16: true", {"fp16=false"}), "no");
  variables_ = {{"ACCELERATE_MIXED_PRECISION", "no"}};
  EXPECT_EQ(precision("fp16: true"), "fp16");
  variables_ = {{"ACCELERATE_MIXED_PRECISION", "fp16"}};
  EXPECT_EQ(precision("fp16: false"), "no");
  EXPECT_EQ(precision("fp16: null"), "fp16");
}

TEST_F(ConfigFileTest, Fp16MustNotContradictMixedPrecision) {
  for (const char* precision : {"no", "bf16"}) {
    EXPECT_EQ(error_of(fmt::format("fp16: true\nmixed_precision: {}\n{}", precision, training())),
              fmt::format("run.yaml:1:7: 'fp16: true' contradicts 'mixed_precision: {}'", precision));
  }
  EXPECT_EQ(error_of("mixed_precision: fp16\nfp16: false\n" + training()),
            "run.yaml:2:7: 'fp16: false' contradicts 'mixed_precision: fp16'");
  EXPECT_EQ(error_of(training(), {"mixed_precision=bf16", "fp16=true"}),
            "--set fp16=true: 'fp16: true' contradicts 'mixed_precision: bf16'");
}

TEST_F(ConfigFileTest, ANullFlagRestoresTheDefault) {
  const std::string yaml = training(", max_grad_norm: 1.0");
  EXPECT_EQ(load(yaml).config.training->max_grad_norm, 1.0);
  EXPECT_FALSE(load(yaml, {"training.max_grad_norm=null"}).config.training->max_grad_norm.has_value());
}

TEST_F(ConfigFileTest, ProfiledStepsAreAFirstAndALast) {
  const std::string yaml = training(", profile: {steps: [1, 2]}");
  EXPECT_EQ(load(yaml, {"training.max_steps=2"}).config.training->profile->last_step, 2);
  EXPECT_FALSE(load(training()).config.training->profile.has_value());
  for (const char* steps : {"[2, 1]", "[1, 3]", "[1]", "[1, 1.5]", "[1, 2, 2]"}) {
    EXPECT_THAT(error_of(yaml, {"training.max_steps=2", fmt::format("training.profile.steps={}", steps)}),
                HasSubstr(fmt::format(
                    "'training.profile.steps' must be the first and the last step to record, of 1 to 2 "
                    "(training.max_steps); found {}",
                    steps)));
  }
}

TEST_F(ConfigFileTest, AFlagMendsAValueThatIsNotBuilt) {
  const std::string yaml = training(", sync_each_batch: true");
  EXPECT_EQ(error_of(yaml),
            fmt::format("run.yaml:1:{}: 'training.sync_each_batch: true' is not supported yet",
                        yaml.find("true}") + 1));
  EXPECT_EQ(load(yaml, {"training.sync_each_batch=false"}).config.launch.num_processes, 1);
}

TEST_F(ConfigFileTest, SeveralMachines) {
  const std::string two = "use_cpu: true\nnum_machines: 2\n";
  const std::string all = two + "main_process_ip: n0\nmachine_rank: 1\nnum_processes: 6\n";
  const LaunchConfig launch = load(all + training()).config.launch;
  EXPECT_EQ(launch.num_processes, 6);
  EXPECT_EQ(launch.local_processes, 3);
  EXPECT_EQ(launch.machine_rank, 1);
  EXPECT_EQ(load(all + training(), {"launch.local_processes=4"}).config.launch.local_processes, 4);
  EXPECT_EQ(load(two + "main_process_ip: n0\n" + training()).config.launch.num_processes, 2);
  EXPECT_EQ(error_of(two + training()),
            "run.yaml:2:15: 2 machines need main_process_ip, the address of machine 0");
  EXPECT_THAT(error_of(all + training(), {"main_process_port=0"}),
              HasSubstr("which the other machines do not know"));
  EXPECT_THAT(error_of(all + training(), {"launch.store_port=29500"}),
              HasSubstr("'launch.store_port' is 29500, which is main_process_port"));
  EXPECT_EQ(load(all + training(), {"launch.run_id=17"}).config.launch.run_id, "17");
  EXPECT_THAT(error_of(all + training(), {"launch.run_id=" + std::string(300, 'x')}),
              HasSubstr("'launch.run_id' has 300 bytes, and at most 256 are allowed"));
  EXPECT_THAT(error_of(all + training(), {"machine_rank=2"}),
              HasSubstr("'machine_rank' is 2, and there are 2"));
  EXPECT_THAT(error_of(all + training(), {"num_processes=5"}),
              HasSubstr("5 ranks on 2 machines are not as many on each"));
  EXPECT_THAT(error_of(all + training(), {"launch.local_processes=6"}),
              HasSubstr("'launch.local_processes' is 6"));
  EXPECT_THAT(error_of(all + training(), {"launch.backend=shm"}),
              HasSubstr("is for one machine, and there are 2"));
}

TEST_F(ConfigFileTest, FewerMachinesMayBeEnough) {
  const std::string three =
      "use_cpu: true\nnum_machines: 3\nmain_process_ip: n0\nnum_processes: 6\n" + training();
  EXPECT_EQ(load(three).config.launch.min_machines, 3);
  const LaunchConfig launch = load(three, {"launch.min_machines=2"}).config.launch;
  EXPECT_EQ(launch.min_machines, 2);
  EXPECT_EQ(launch.last_call_timeout_s, 30);
  EXPECT_THAT(error_of(three, {"launch.min_machines=4"}),
              HasSubstr("'launch.min_machines' is 4, and there are 3 machines"));
  EXPECT_THAT(error_of(three, {"launch.min_machines=2", "launch.last_call_timeout=29"}),
              HasSubstr("is 29 s, which is shorter than launch.grace_period (30 s)"));
  EXPECT_EQ(load(three, {"launch.last_call_timeout=29"}).config.launch.min_machines, 3);
  // What the launcher sets for two of the three machines.
  EXPECT_EQ(load(three, {"num_processes=3", "num_machines=2", "launch.local_processes=2"})
                .config.launch.num_processes,
            3);
}

TEST_F(ConfigFileTest, NamesWhatIsNotThereYet) {
  const std::pair<const char*, const char*> rows[] = {
      {"sync_each_batch=true", "sync_each_batch: true"},
      {"data.workers=4", "data.workers: 4"},
      {"metrics.jsonl=false", "metrics.jsonl: false"},
  };
  for (const auto& [assignment, shown] : rows) {
    EXPECT_EQ(error_of(training(), {fmt::format("training.{}", assignment)}),
              fmt::format("--set training.{}: 'training.{}' is not supported yet", assignment, shown));
  }
}

TEST_F(ConfigFileTest, AcceptsInactiveAndDefaultValues) {
  const std::string yaml =
      "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'no'\ndebug: false\n"
      "downcast_bf16: 'no'\ntpu_use_cluster: false\ntpu_use_sudo: false\ntpu_env: []\nsame_network: true\n"
      "main_training_function: main\nrdzv_backend: static\nnum_machines: 1\nmachine_rank: 0\nfp16: false\n"
      "dynamo_backend: 'NO'\nenable_cpu_affinity: false\nnum_processes: 2\nuse_cpu: true\n"
      "deepspeed_config: {}\nmegatron_lm_config: {}\nmpirun_config: {}\nfp8_config: null\n"
      "parallelism_config: {dp_replicate_size: 1, dp_shard_size: 2, tp_size: 1}\n"
      "fsdp_config: {fsdp_offload_params: false, fsdp_activation_checkpointing: false, "
      "fsdp_forward_prefetch: false, "
      "fsdp_backward_prefetch: BACKWARD_PRE, fsdp_use_orig_params: true, fsdp_sync_module_states: true, "
      "fsdp_cpu_ram_efficient_loading: true, fsdp_state_dict_type: FULL_STATE_DICT, fsdp_min_num_params: "
      "100}\n"
      "launch: {max_restarts: 0, tee: 0, hang_timeout: null, monitor_interval: 0.1}\n" +
      training(
          ", sync_each_batch: false, checkpoint: {resume: none, async: false, adapter_only: false, export: "
          "none}, "
          "metrics: {jsonl: true, tensorboard: false}, epochs: null");
  const Config c = load(yaml).config;
  EXPECT_EQ(c.distributed_type, DistributedType::kFsdp);
  EXPECT_EQ(c.launch.num_processes, 2);
}

TEST_F(ConfigFileTest, RotatesLogsIfAskedTo) {
  const Config by_default = load(training()).config;
  EXPECT_EQ(by_default.launch.log_max_bytes, 0U);
  EXPECT_EQ(by_default.launch.log_files, 4);
  const Config c = load("launch: {log_max_size: 100MB, log_files: 9}\n" + training()).config;
  EXPECT_EQ(c.launch.log_max_bytes, 100'000'000U);
  EXPECT_EQ(c.launch.log_files, 9);
  EXPECT_EQ(load("launch: {log_max_size: 0}\n" + training()).config.launch.log_max_bytes, 0U);
  EXPECT_THAT(error_of("launch: {log_max_size: large}\n" + training()),
              HasSubstr("'launch.log_max_size' must be a size, such as 100MB; found 'large'"));
  EXPECT_THAT(error_of("launch: {log_files: 0}\n" + training()), HasSubstr("'launch.log_files'"));
}

TEST_F(ConfigFileTest, RefusesSystemsThatAreNotHere) {
  const std::pair<const char*, const char*> rows[] = {
      {"distributed_type: DEEPSPEED", "1:19: 'distributed_type: DEEPSPEED' asks for DeepSpeed, which"},
      {"distributed_type: MULTI_NPU", "1:19: 'distributed_type: MULTI_NPU' asks for Ascend NPUs, which"},
      {"rdzv_backend: c10d\nnum_machines: 2",
       "1:15: 'rdzv_backend: c10d' asks for torch's elastic rendezvous, which"},
      {"compute_environment: AMAZON_SAGEMAKER",
       "1:22: 'compute_environment: AMAZON_SAGEMAKER' asks for SageMaker"},
      {"tpu_use_cluster: true", "1:18: 'tpu_use_cluster: true' asks for TPU pods"},
      {"distributed_type: DEEPSPEED\nno_such_key: 1\nfsdp_config: {version: 7}",
       "1:19: 'distributed_type: DEEPSPEED' asks for DeepSpeed, which"},
      {"mpirun_config: {mpirun_hostfile: h}", "1:34: 'mpirun_config.mpirun_hostfile: h' asks for mpirun"},
  };
  for (const auto& [line, place] : rows) {
    EXPECT_THAT(error_of(fmt::format("{}\n{}", line, training())),
                StartsWith(fmt::format("run.yaml:{}", place)));
    EXPECT_THAT(error_of(line, {}, true), StartsWith(fmt::format("run.yaml:{}", place)));
  }
  EXPECT_THAT(
      error_of("dynamo_config: {dynamo_backend: ONNXRT}\n" + training()),
      StartsWith("run.yaml:1:33: 'dynamo_config.backend: ONNXRT' asks for another backend of Python's"));
  EXPECT_THAT(error_of("no_such_key: 1\ndistributed_type: DEEPSPEED\n", {"distributed_type=FSDP"}),
              StartsWith("run.yaml:1:1: unknown key 'no_such_key'"));
}

TEST_F(ConfigFileTest, NoDistributedTrainingIsOneProcess) {
  const LoadedConfig loaded = load("distributed_type: 'NO'\nnum_processes: 8\n" + training());
  EXPECT_EQ(loaded.config.launch.num_processes, 1);
  EXPECT_THAT(loaded.warnings, ElementsAre(HasSubstr("run.yaml:2:16: 'num_processes: 8' has no effect")));
  const LoadedConfig flag = load("distributed_type: 'NO'\n" + training(), {"num_processes=2"});
  EXPECT_EQ(flag.config.launch.num_processes, 1);
  EXPECT_THAT(flag.warnings, ElementsAre(HasSubstr("'num_processes: 2' has no effect")));
  EXPECT_THAT(load("distributed_type: 'NO'\nnum_processes: 1\n" + training()).warnings, IsEmpty());
}

TEST_F(ConfigFileTest, AnEmptyAddressIsNone) {
  EXPECT_EQ(load("main_process_ip: ''\n" + training()).config.launch.main_process_ip, "127.0.0.1");
  EXPECT_THAT(error_of("main_process_ip: ''\nnum_machines: 2\n" + training()),
              HasSubstr("2 machines need main_process_ip"));
}

TEST_F(ConfigFileTest, RequiresWhatHasNoDefault) {
  EXPECT_THAT(error_of("use_cpu: true\n"), HasSubstr("run.yaml: there is no 'training' section"));
  EXPECT_THAT(error_of(""), HasSubstr("there is no 'training' section"));
  for (const char* key :
       {"model.path", "data.train.format", "data.train.path", "data.train.sequence_length", "max_steps"}) {
    EXPECT_EQ(error_of(training(), {fmt::format("training.{}=null", key)}),
              fmt::format("--set training.{0}=null: 'training.{0}' is null", key));
  }
  EXPECT_EQ(error_of(training(), {"training.data.eval.format=text"}),
            "run.yaml: 'training.data.eval.path' is missing");
}

TEST_F(ConfigFileTest, RequiresFilesToExist) {
  EXPECT_EQ(error_of(training(), {"training.model.path=no.pt"}),
            "--set training.model.path=no.pt: 'training.model.path': 'no.pt' does not exist");
  EXPECT_EQ(error_of(training(), {"training.model.path=/"}),
            "--set training.model.path=/: 'training.model.path': '/' is not a file");
  EXPECT_EQ(
      error_of(training(), {"training.data.train.path=no/*.bin"}),
      "--set training.data.train.path=no/*.bin: 'training.data.train.path': nothing matches 'no/*.bin'");
  EXPECT_THAT(error_of(training(), {"training.data.eval={format: text, path: no, sequence_length: 1}"}),
              HasSubstr("'training.data.eval.path': nothing matches 'no'"));
}

TEST_F(ConfigFileTest, FindsContradictions) {
  EXPECT_EQ(error_of("distributed_type: 'NO'\nnum_machines: 2\nmain_process_ip: a\n" + training()),
            "run.yaml:1:19: 'distributed_type: NO' runs one process, but num_machines is 2");
  EXPECT_EQ(error_of("distributed_type: MULTI_GPU\n" + training()),
            "run.yaml:1:19: 'distributed_type: MULTI_GPU', but no GPU is visible here");
  EXPECT_EQ(error_of("num_processes: 0\n" + training()),
            "run.yaml:1:16: 'num_processes' must be from 1 to 65536, or -1 for one per GPU, found 0");
  EXPECT_EQ(error_of("parallelism_config: {dp_shard_size: 3}\ndistributed_type: FSDP\nnum_processes: 2\n" +
                     training()),
            "run.yaml:1:37: 'parallelism_config.dp_shard_size: 3' contradicts 2 processes");
  EXPECT_EQ(
      error_of("fsdp_config: {version: 2, state_dict_type: LOCAL_STATE_DICT}\n" + training()),
      "run.yaml:1:44: 'fsdp_config.state_dict_type: LOCAL_STATE_DICT' contradicts 'fsdp_config.version: 2', "
      "which has no such type");
  EXPECT_EQ(load("fsdp_config: {version: 1, state_dict_type: LOCAL_STATE_DICT}\n" + training())
                .config.training->checkpoint.type,
            StateDictType::kLocal);
  EXPECT_THAT(error_of(training(", checkpoint: {adapter_names: [lora_]}")),
              HasSubstr("'training.checkpoint.adapter_names' has no effect without"));
  EXPECT_THAT(error_of(training(", checkpoint: {adapter_only: true, adapter_names: ['']}")),
              HasSubstr("'training.checkpoint.adapter_names' must list parts of names"));
  EXPECT_THAT(error_of("fsdp_config: {version: 2, state_dict_type: FULL_STATE_DICT}\n" +
                       training(", checkpoint: {adapter_only: true}")),
              HasSubstr("'training.checkpoint.adapter_only: true' needs 'fsdp_config.state_dict_type: "
                        "SHARDED_STATE_DICT'"));
  EXPECT_THAT(error_of(training(), {"training.data.train.packing=none"}),
              HasSubstr("'training.data.train.packing' is for 'format: documents', not 'text'"));
  EXPECT_THAT(
      error_of(training(), {"training.data.train.format=documents", "training.data.train.packing=best_fit"}),
      HasSubstr("'training.data.train.packing: best_fit' needs a model that takes position_ids"));
  EXPECT_THAT(error_of(training(", checkpoint: {export: safetensors}")),
              HasSubstr("'training.checkpoint.export: safetensors' is made of the last checkpoint"));
  EXPECT_EQ(error_of("launch: {backend: nccl}\n" + training()),
            "run.yaml:1:19: 'launch.backend: nccl' needs GPUs, and this run has none");
  EXPECT_EQ(
      error_of(training(), {"launch.grace_period=1e300"}),
      "--set launch.grace_period=1e300: 'launch.grace_period' must be at most 1000000000, found '1e300'");
  EXPECT_EQ(error_of(training(), {"training.data.batch_size=4611686018427387904"}),
            "--set training.data.batch_size=4611686018427387904: 'training.data.batch_size' must be at most "
            "1000000000, found '4611686018427387904'");
  EXPECT_EQ(error_of(training(), {"training.optimizer.betas=[0.9]"}),
            "--set training.optimizer.betas=[0.9]: 'training.optimizer.betas' must be two numbers, found 1");
  EXPECT_EQ(
      error_of(training(), {"training.data.train.dtype=uint16"}),
      "--set training.data.train.dtype=uint16: 'training.data.train.dtype' is for 'format: tokens', not "
      "'text'");
  EXPECT_EQ(error_of(training(), {"training.lr_scheduler.min_lr_ratio=0.1"}),
            "--set training.lr_scheduler.min_lr_ratio=0.1: 'training.lr_scheduler.min_lr_ratio' is for "
            "the types cosine, cosine_with_min_lr, cosine_warmup_with_min_lr, warmup_stable_decay, not "
            "'constant'");
}

TEST_F(ConfigFileTest, AProgramNeedsNoTrainingAndHasNoneOfTheEnginesLimits) {
  const std::string yaml =
      "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config: {offload_params: true, "
      "sharding_strategy: HYBRID_SHARD}\n";
  const Config c = load(yaml, {}, true).config;
  EXPECT_EQ(c.mixed_precision, "bf16");
  EXPECT_FALSE(c.training.has_value());
  EXPECT_EQ(load("", {"num_processes=3"}, true).config.distributed_type, DistributedType::kMultiCpu);
  EXPECT_THAT(error_of("rdzv_backend: c10d\nnum_machines: 2\n", {}, true),
              HasSubstr("which accel does not have"));
}

TEST_F(ConfigFileTest, TeeIsThatOfTorchrun) {
  const auto tee = [&](const std::string& value) {
    return load("num_processes: 3\n", {"launch.tee=" + value}, true).config.launch.tee;
  };
  EXPECT_THAT(tee("0"), IsEmpty());
  EXPECT_THAT(tee("3"), ElementsAre(3, 3, 3));
  EXPECT_THAT(tee("0:0,2:1"), ElementsAre(0, -1, 1));
  for (const char* wrong : {"4", "all", "0:4", "3:1", "x:1", ":1", "0:1;1:1", "-1"}) {
    EXPECT_THAT(error_of("num_processes: 3\n", {std::string("launch.tee=") + wrong}, true),
                HasSubstr(fmt::format("'launch.tee' is '{}'", wrong)));
  }
}

TEST_F(ConfigFileTest, TheIndexOfAJobIsTheMachineOfARunOnSeveral) {
  variables_["JOB_COMPLETION_INDEX"] = "1";
  // Accelerate writes machine_rank: 0 into every file.
  const std::string yaml = "num_machines: 2\nmachine_rank: 0\nmain_process_ip: m0\nnum_processes: 2\n";
  const LoadedConfig loaded = load(yaml, {}, true);
  EXPECT_EQ(loaded.config.launch.machine_rank, 1);
  EXPECT_EQ(loaded.settings.where("machine_rank"), "environment variable JOB_COMPLETION_INDEX: ");
  EXPECT_EQ(load(yaml, {"machine_rank=0"}, true).config.launch.machine_rank, 0);
  const std::string one = "num_machines: 1\nmachine_rank: 0\nmain_process_ip: m0\nnum_processes: 2\n";
  EXPECT_EQ(load(one, {"num_machines=2"}, true).config.launch.machine_rank, 1);
  // Each pod of the job has a run of its own.
  EXPECT_EQ(load(one, {}, true).config.launch.machine_rank, 0);
  EXPECT_EQ(load("", {}, true).config.launch.num_machines, 1);
}

TEST_F(ConfigFileTest, TeeMayNameLocalRanksThatThisMachineDoesNotHave) {
  const std::string yaml = "num_machines: 2\nmain_process_ip: m0\nnum_processes: 3\n";
  const auto tee = [&](int ranks, std::vector<std::string> more) {
    more.push_back(fmt::format("launch.local_processes={}", ranks));
    return load(yaml, more, true).config.launch.tee;
  };
  EXPECT_THAT(tee(1, {"launch.tee=0:3,1:1"}), ElementsAre(3));
  EXPECT_THAT(tee(2, {"launch.tee=0:3,1:1"}), ElementsAre(3, 1));
  // The second machine has one rank, so that no machine has three.
  EXPECT_THAT(error_of(yaml, {"launch.local_processes=2", "launch.tee=2:1"}, true),
              HasSubstr("'launch.tee' is '2:1'"));
  // The machine with two ranks may have been lost.
  EXPECT_THAT(load("num_machines: 1\nnum_processes: 1\n", {"launch.tee=1:1", "launch.min_machines=1"}, true)
                  .config.launch.tee,
              ElementsAre(-1));
}

TEST_F(ConfigFileTest, AMissingFileIsAUsageError) {
  ConfigRequest request;
  request.file = dir_ / "none.yaml";
  request.environment = [](const std::string&) { return std::nullopt; };
  try {
    (void)load_config(request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("none.yaml': No such file or directory"));
  }
}

TEST_F(ConfigFileTest, OnGpusTheNextUnitIsAlwaysGatheredAhead) {
  gpus_ = 1;
  const std::string rest = "distributed_type: FSDP\nnum_processes: 1\n" + training();
  for (const char* version : {"1", "2, fsdp_forward_prefetch: false"}) {
    const std::string fsdp = fmt::format("fsdp_config: {{fsdp_version: {}}}\n", version);
    EXPECT_TRUE(load(fsdp + rest).config.fsdp.forward_prefetch) << fsdp;
    EXPECT_FALSE(load(fsdp + "use_cpu: true\n" + rest).config.fsdp.forward_prefetch) << fsdp;
  }
}

// A plan needs the model. GPUs, data and the output may be on another machine.
TEST_F(ConfigFileTest, APlanNeedsNeitherGpusNorData) {
  only_plans_ = true;
  std::filesystem::remove(dir_ / "a.txt");
  std::filesystem::remove(dir_ / "b.txt");
  std::filesystem::create_directories(dir_ / "out/checkpoints/checkpoint_5");
  const std::string output =
      fmt::format(", output_dir: {}/out, checkpoint: {{every: 5}}", dir_.path().string());
  const auto ranks = [&](const std::string& keys) {
    return load(keys + training(output)).config.launch.num_processes;
  };
  EXPECT_EQ(ranks("distributed_type: FSDP\nnum_processes: 1024\nlaunch: {backend: nccl}\n"), 1024);
  EXPECT_EQ(ranks("distributed_type: FSDP\ngpu_ids: 0,1,2\n"), 3);
  gpus_ = 2;
  EXPECT_EQ(ranks("distributed_type: FSDP\n"), 2);
  EXPECT_EQ(ranks("distributed_type: FSDP\nnum_processes: 64\n"), 64);
  EXPECT_EQ(ranks("distributed_type: MULTI_GPU\nnum_processes: 8\n"), 8);
  std::filesystem::remove(dir_ / "gpt.pt");
  EXPECT_THAT(error_of("distributed_type: FSDP\n" + training()), HasSubstr("gpt.pt' does not exist"));
}

TEST_F(ConfigFileTest, ANullWithoutADefaultIsPointedAt) {
  EXPECT_EQ(error_of(training(), {"training.max_steps=null"}),
            "--set training.max_steps=null: 'training.max_steps' is null");
  EXPECT_EQ(error_of("training:\n  max_steps: null\n  model:\n    path: " + (dir_ / "gpt.pt").string() +
                     "\n  data: {train: {format: text, path: " + (dir_ / "a.txt").string() +
                     ", sequence_length: 8}}\n"),
            "run.yaml:2:14: 'training.max_steps' is null");
  EXPECT_EQ(error_of("training:\n  max_steps: 1\n  model: null\n"),
            "run.yaml:3:10: 'training.model.path' is missing, because 'training.model' is null");
}

TEST_F(ConfigFileTest, SectionsThatDoNotFitArePointedAt) {
  EXPECT_THAT(error_of("mixed_precision: bf16\n" + training(", grad_scaler: {init_scale: 2}")),
              HasSubstr("run.yaml:2:"));
}

TEST_F(ConfigFileTest, SaysThatTheMonitorIntervalDoesNothing) {
  const auto loaded = load("use_cpu: true\nlaunch: {monitor_interval: 0.1}\n" + training());
  EXPECT_THAT(loaded.warnings,
              ElementsAre(HasSubstr("run.yaml:2:28: 'launch.monitor_interval' has no effect")));
  EXPECT_THAT(load("use_cpu: true\n" + training()).warnings, IsEmpty());
}

TEST_F(ConfigFileTest, FsdpOnTheCpuIsSaidUnlessItIsAskedFor) {
  const std::string fsdp = "distributed_type: FSDP\n" + training();
  EXPECT_THAT(load(fsdp).warnings, ElementsAre(HasSubstr("run.yaml:1:19: FSDP, but no GPU is visible here")));
  EXPECT_THAT(load(fsdp, {"use_cpu=true"}).warnings, IsEmpty());
  EXPECT_THAT(load(fsdp, {}, /*program=*/true).warnings,
              ElementsAre(HasSubstr("a program that uses Accelerate fails with FSDP 1")));
  const std::vector<std::string> no_broadcast{"fsdp_config.fsdp_sync_module_states=false",
                                              "fsdp_config.fsdp_cpu_ram_efficient_loading=false"};
  EXPECT_THAT(load(fsdp, {no_broadcast[0]}, /*program=*/true).warnings,
              Contains(HasSubstr("a program that uses Accelerate fails with FSDP 1")));
  EXPECT_THAT(load(fsdp, no_broadcast, /*program=*/true).warnings,
              Contains(HasSubstr("Accelerate makes DistributedDataParallel of FSDP: a program")));
  EXPECT_THAT(load(fsdp, {"fsdp_config.fsdp_version=2"}, /*program=*/true).warnings,
              ElementsAre(HasSubstr("Accelerate makes DistributedDataParallel of FSDP: a program")));
  for (const char* type : {"FSDP", "MULTI_GPU"}) {
    const std::string several = fmt::format("distributed_type: {}\nnum_processes: 2\n", type) + training();
    EXPECT_THAT(load(several, {"use_cpu=false"}, /*program=*/true).warnings,
                ElementsAre(HasSubstr("Accelerate makes a run of its own of each of the 2 processes")));
  }
  EXPECT_THAT(load(training()).warnings, IsEmpty());
  gpus_ = 1;
  EXPECT_THAT(load(fsdp).warnings, IsEmpty());
  gpus_ = 0;
  only_plans_ = true;
  EXPECT_THAT(load(fsdp).warnings, IsEmpty());
}

TEST_F(ConfigFileTest, TellsTheWorkerWhereItsLayerClassesWereSet) {
  const auto origin = [&](std::string_view keys) {
    const std::string text =
        load(fmt::format("use_cpu: true\nfsdp_config: {{{}}}\n", keys) + training()).config.fsdp.wrap_origin;
    return text.substr(text.rfind('/') + 1);
  };
  EXPECT_EQ(origin("fsdp_transformer_layer_cls_to_wrap: Block"),
            "run.yaml:2:51: 'fsdp_config.transformer_layer_cls_to_wrap'");
  EXPECT_EQ(origin("fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"),
            "run.yaml:2:38: 'fsdp_config.auto_wrap_policy: TRANSFORMER_BASED_WRAP'");
}

}  // namespace
}  // namespace accel::config
