#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "config_file_fixture.hpp"
#include "core/config/mesh.hpp"

namespace accel::config {
namespace {

using ConfigRanksTest = testing::ConfigFileTest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(ConfigRanksTest, MixedPrecisionIsOfParametersAndGradients) {
  const std::string fsdp =
      "distributed_type: FSDP\nfsdp_config: {version: 2}\nmixed_precision: bf16\n" + training();
  const PrecisionConfig both = load(fsdp).config.fsdp.precision;
  EXPECT_EQ(both.param_dtype, "bfloat16");
  EXPECT_EQ(both.reduce_dtype, "bfloat16");
  const PrecisionConfig mixed = load(fsdp, {"fsdp_config.reduce_dtype=fp32"}).config.fsdp.precision;
  EXPECT_EQ(mixed.param_dtype, "bfloat16");
  EXPECT_EQ(mixed.reduce_dtype, "float32");
  EXPECT_EQ(load(fsdp, {"mixed_precision=no"}).config.fsdp.precision.param_dtype, "");
  EXPECT_THAT(
      error_of(fsdp, {"mixed_precision=no", "fsdp_config.reduce_dtype=fp32"}),
      HasSubstr("'fsdp_config.reduce_dtype: fp32' is for mixed precision, and 'mixed_precision' is 'no'"));
  EXPECT_EQ(both.io_dtype, "bfloat16");
  EXPECT_EQ(both.autocast_dtype + both.buffer_dtype, "");

  const PrecisionConfig old = load(fsdp, {"fsdp_config.version=1"}).config.fsdp.precision;
  EXPECT_EQ(old.param_dtype, "bfloat16");
  EXPECT_EQ(old.reduce_dtype, "bfloat16");
  EXPECT_EQ(old.buffer_dtype, "bfloat16");
  EXPECT_EQ(old.autocast_dtype, "bfloat16");
  EXPECT_EQ(old.io_dtype, "");

  const std::string plain = "mixed_precision: fp16\n" + training();
  for (const char* type : {"distributed_type=NO", "distributed_type=MULTI_CPU"}) {
    const PrecisionConfig none = load(plain, {type, "use_cpu=true"}).config.fsdp.precision;
    EXPECT_EQ(none.autocast_dtype, "float16");
    EXPECT_EQ(none.param_dtype + none.reduce_dtype + none.io_dtype + none.buffer_dtype, "");
    EXPECT_TRUE(none.is_float16());
  }
  EXPECT_THAT(
      error_of(plain, {"distributed_type=MULTI_CPU", "use_cpu=true", "fsdp_config.reduce_dtype=fp32"}),
      HasSubstr("'fsdp_config.reduce_dtype: fp32' is for FSDP, and 'distributed_type' is another"));
}

TEST_F(ConfigRanksTest, Float16HasAScalerOfTheLoss) {
  const std::string fsdp = "distributed_type: FSDP\nfsdp_config: {version: 2}\n" + training();
  const std::vector<std::string> fp16 = {"mixed_precision=fp16"};
  const Config plain = load(fsdp, fp16).config;
  EXPECT_EQ(plain.fsdp.precision.param_dtype, "float16");
  EXPECT_EQ(plain.fsdp.precision.reduce_dtype, "float16");
  EXPECT_TRUE(plain.fsdp.precision.is_float16());
  EXPECT_EQ(plain.training->grad_scaler.init_scale, 65536);
  EXPECT_EQ(plain.training->grad_scaler.growth_interval, 2000);
  EXPECT_EQ(load(fsdp, {"fp16=true"}).config.mixed_precision, "fp16");  // Accelerate's old key.
  const Config set = load(fsdp, {"mixed_precision=fp16", "training.grad_scaler.init_scale=1024",
                                 "training.grad_scaler.growth_interval=10"})
                         .config;
  EXPECT_EQ(set.training->grad_scaler.init_scale, 1024);
  EXPECT_EQ(set.training->grad_scaler.growth_interval, 10);
  EXPECT_EQ(error_of(fsdp, {"mixed_precision=bf16", "training.grad_scaler.init_scale=1024"}),
            "--set training.grad_scaler.init_scale=1024: 'training.grad_scaler' is for mixed_precision: "
            "fp16, and 'mixed_precision' is 'bf16'");
  EXPECT_THAT(
      error_of(fsdp, {"mixed_precision=bf16", "fsdp_config.reduce_dtype=fp16"}),
      HasSubstr("'fsdp_config.reduce_dtype: fp16' needs 'mixed_precision: fp16', which scales the loss; "
                "found 'bf16'"));
}

TEST_F(ConfigRanksTest, OffloadsParametersAndActivationsEachByItself) {
  const std::string fsdp = "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\n" + training();
  for (const char* version : {"fsdp_config.version=1", "fsdp_config.version=2"}) {
    const FsdpConfig none = load(fsdp, {version}).config.fsdp;
    EXPECT_FALSE(none.offload_params);
    EXPECT_FALSE(none.activation_offload);
    const FsdpConfig params = load(fsdp, {version, "fsdp_config.fsdp_offload_params=true"}).config.fsdp;
    EXPECT_TRUE(params.offload_params);
    EXPECT_FALSE(params.activation_offload);
    const FsdpConfig activations = load(fsdp, {version, "fsdp_config.fsdp_activation_checkpointing=true",
                                               "fsdp_config.fsdp_activation_checkpointing_offload=true"})
                                       .config.fsdp;
    EXPECT_FALSE(activations.offload_params);
    EXPECT_TRUE(activations.activation_offload);
  }
  EXPECT_EQ(error_of("fsdp_config: {activation_checkpointing_offload: true}\n" + fsdp),
            "run.yaml:1:49: 'fsdp_config.activation_checkpointing_offload: true' needs "
            "'fsdp_config.activation_checkpointing: true'");
}

TEST_F(ConfigRanksTest, LaysOutTheRanks) {
  const auto fsdp = [&](const std::string& keys, int processes, const std::string& more = "") {
    return load(fmt::format("distributed_type: FSDP\nnum_processes: {}\nfsdp_config: {{{}}}\n{}\n", processes,
                            keys, more) +
                training())
        .config.fsdp;
  };
  EXPECT_EQ(fsdp("version: 2", 4).replicate_size, 1);
  EXPECT_EQ(
      fsdp("version: 2", 4, "parallelism_config: {dp_replicate_size: 2, dp_shard_size: 2}").replicate_size,
      2);
  EXPECT_EQ(
      fsdp("version: 2", 4, "parallelism_config: {dp_replicate_size: 1, dp_shard_size: 1}").replicate_size,
      1);
  // One size implies the other.
  EXPECT_EQ(
      fsdp("version: 2", 6, "parallelism_config: {parallelism_config_dp_replicate_size: 3}").replicate_size,
      3);
  EXPECT_EQ(fsdp("version: 2", 6, "parallelism_config: {dp_shard_size: 3}").replicate_size, 2);
  EXPECT_EQ(fsdp("version: 2", 4, "parallelism_config: {dp_replicate_size: 4}").replicate_size, 4);

  EXPECT_EQ(fsdp("sharding_strategy: FULL_SHARD", 4).replicate_size, 1);
  EXPECT_EQ(fsdp("sharding_strategy: NO_SHARD", 4).replicate_size, 4);
  // One machine is one replica.
  EXPECT_EQ(fsdp("sharding_strategy: HYBRID_SHARD", 4).replicate_size, 1);
  EXPECT_EQ(
      fsdp("sharding_strategy: HYBRID_SHARD", 4, "parallelism_config: {dp_shard_size: 2}").replicate_size, 2);
  EXPECT_FALSE(fsdp("sharding_strategy: HYBRID_SHARD_ZERO2", 4, "parallelism_config: {dp_shard_size: 2}")
                   .reshard_after_forward);

  EXPECT_EQ(fsdp("version: 2, reshard_after_forward: 2", 4).reshard_size, 2);
  EXPECT_EQ(fsdp("version: 2, reshard_after_forward: 4", 4).reshard_size, 0);  // All ranks, as true.
  EXPECT_EQ(fsdp("version: 2, reshard_after_forward: 2", 8, "parallelism_config: {dp_replicate_size: 2}")
                .reshard_size,
            2);
}

TEST_F(ConfigRanksTest, LaysOutTheRanksOfTensorParallelism) {
  const auto mesh = [&](const std::string& type, int processes, const std::string& sizes) {
    return mesh_of(load(fmt::format("distributed_type: {}\nnum_processes: {}\nuse_cpu: true\n"
                                    "parallelism_config: {{{}}}\n",
                                    type, processes, sizes) +
                        training())
                       .config);
  };
  const std::string fsdp = "FSDP\nfsdp_config: {version: 2}";
  const auto expect = [](const Mesh& found, int replicas, int shards, int tp) {
    EXPECT_EQ(found.replicas(), replicas);
    EXPECT_EQ(found.shards(), shards);
    EXPECT_EQ(found.tp(), tp);
  };
  expect(mesh(fsdp, 8, "tp_size: 2"), 1, 4, 2);
  expect(mesh(fsdp, 2, "parallelism_config_tp_size: 2"), 1, 1, 2);
  expect(mesh(fsdp, 8, "dp_replicate_size: 2, dp_shard_size: 2, tp_size: 2"), 2, 2, 2);
  // Accelerate refuses replicas without shards beside tensor parallelism.
  expect(mesh(fsdp, 4, "dp_replicate_size: 2, tp_size: 2"), 2, 1, 2);
  expect(mesh("MULTI_CPU", 4, "tp_size: 2"), 2, 1, 2);
  const auto error = [&](const std::string& keys, const std::string& sizes, const std::string& more = "") {
    return error_of(fmt::format("parallelism_config: {{{}}}\ndistributed_type: FSDP\nnum_processes: 4\n"
                                "fsdp_config: {{{}}}\n",
                                sizes, keys) +
                    training(more));
  };
  EXPECT_EQ(error("version: 2", "tp_size: 3"),
            "run.yaml:1:31: 'parallelism_config.tp_size: 3' contradicts 4 processes");
  EXPECT_EQ(error("version: 2", "tp_size: 2, dp_shard_size: 4"),
            "run.yaml:1:49: 'parallelism_config.dp_shard_size: 4' contradicts 2 processes beside "
            "'parallelism_config.tp_size: 2'");
  EXPECT_EQ(error("version: 1", "tp_size: 2"),
            "run.yaml:1:31: 'parallelism_config.tp_size: 2' contradicts version 1 of FSDP");
}

TEST_F(ConfigRanksTest, RefusesWhatTensorParallelismDoesNotHave) {
  const auto error = [&](const std::string& more, const std::string& top = "") {
    return error_of(
        "parallelism_config: {tp_size: 2}\ndistributed_type: FSDP\nnum_processes: 2\n"
        "fsdp_config: {version: 2}\nuse_cpu: true\n" +
            top + training(),
        {more});
  };
  const std::string beside = " is not supported with 'parallelism_config.tp_size' above 1 yet";
  for (const std::string type : {"muon", "adafactor", "adamw8bit"}) {
    EXPECT_EQ(
        error("training.optimizer.type=" + type),
        fmt::format("--set training.optimizer.type={0}: 'training.optimizer.type: {0}', which needs whole "
                    "parameters,{1}",
                    type, beside));
  }
  EXPECT_EQ(
      error("training.model.broadcast_from_rank0=true"),
      "--set training.model.broadcast_from_rank0=true: 'training.model.broadcast_from_rank0: true'" + beside);
  EXPECT_EQ(error("training.checkpoint.adapter_only=true"),
            "--set training.checkpoint.adapter_only=true: 'training.checkpoint.adapter_only: true'" + beside);
  EXPECT_EQ(error("mixed_precision=fp8", "fp8_config: {enable_fsdp_float8_all_gather: false}\n"),
            "--set mixed_precision=fp8: 'mixed_precision: fp8'" + beside);
}

TEST_F(ConfigRanksTest, RefusesLayoutsThatContradictEachOther) {
  const auto error = [&](const std::string& keys, const std::string& sizes) {
    return error_of(fmt::format("parallelism_config: {{{}}}\ndistributed_type: FSDP\nnum_processes: 4\n"
                                "fsdp_config: {{{}}}\n",
                                sizes, keys) +
                    training());
  };
  EXPECT_EQ(
      error("version: 2", "dp_replicate_size: 2, dp_shard_size: 4"),
      "run.yaml:1:41: 'parallelism_config.dp_replicate_size: 2' times 'parallelism_config.dp_shard_size: 4' "
      "contradicts 4 processes");
  EXPECT_EQ(error("version: 2", "dp_replicate_size: 3"),
            "run.yaml:1:41: 'parallelism_config.dp_replicate_size: 3' contradicts 4 processes");
  EXPECT_EQ(error("version: 1", "dp_shard_size: 2"),
            "run.yaml:1:37: 'parallelism_config.dp_shard_size: 2' makes a mesh of 2 x 2, which contradicts "
            "FULL_SHARD of FSDP version 1");
  EXPECT_EQ(error("sharding_strategy: NO_SHARD", "dp_replicate_size: 2"),
            "run.yaml:1:41: 'parallelism_config.dp_replicate_size: 2' makes a mesh of 2 x 2, which "
            "contradicts NO_SHARD of FSDP version 1");
  EXPECT_EQ(
      error("version: 2, reshard_after_forward: 3", "dp_shard_size: 4"),
      "run.yaml:4:50: 'fsdp_config.reshard_after_forward: 3' does not divide the 4 ranks that share each "
      "parameter");
  EXPECT_EQ(
      error("version: 2, reshard_after_forward: 4", "dp_shard_size: 2"),
      "run.yaml:4:50: 'fsdp_config.reshard_after_forward: 4' does not divide the 2 ranks that share each "
      "parameter");
  EXPECT_EQ(error("version: 2", "dp_replicate_size: 4611686018427387904, dp_shard_size: 4"),
            "run.yaml:1:41: 'parallelism_config.dp_replicate_size: 4611686018427387904' times "
            "'parallelism_config.dp_shard_size: 4' contradicts 4 processes");
  EXPECT_EQ(
      error_of("parallelism_config: {dp_shard_size: 2}\ndistributed_type: MULTI_CPU\nnum_processes: 2\n" +
               training()),
      "run.yaml:1:37: 'parallelism_config.dp_shard_size: 2' makes a mesh of 1 x 2, which contradicts "
      "'distributed_type: MULTI_CPU'");
}

TEST_F(ConfigRanksTest, WithoutShardingEveryRankHasTheModel) {
  for (const char* type : {"distributed_type: MULTI_CPU\n", ""}) {
    const LoadedConfig loaded = load(fmt::format("{}num_processes: 3\n", type) + training());
    EXPECT_EQ(loaded.config.distributed_type, DistributedType::kMultiCpu);
    EXPECT_EQ(loaded.config.fsdp.replicate_size, 3);
    EXPECT_EQ(loaded.config.fsdp.auto_wrap_policy, WrapPolicy::kSize);
    EXPECT_EQ(loaded.config.fsdp.min_num_params, 25 * 1024 * 1024 / 4);
    EXPECT_THAT(loaded.warnings, IsEmpty());
  }
  const LoadedConfig warned =
      load("distributed_type: MULTI_CPU\nnum_processes: 2\nfsdp_config: {activation_checkpointing: true}\n" +
           training());
  EXPECT_THAT(warned.warnings, ElementsAre(HasSubstr("run.yaml:3:41: 'fsdp_config' has no effect")));
  EXPECT_FALSE(warned.config.fsdp.activation_checkpointing);
}

TEST_F(ConfigRanksTest, TakesOneProcessPerGpu) {
  gpus_ = 4;
  const std::string fsdp = "distributed_type: FSDP\n" + training();
  EXPECT_EQ(load(fsdp).config.launch.num_processes, 4);
  EXPECT_EQ(load(fsdp).config.launch.gpu_ids, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_FALSE(load(fsdp).config.launch.use_cpu);
  EXPECT_EQ(load(fsdp, {"num_processes=2"}).config.launch.gpu_ids, (std::vector<int>{0, 1}));
  EXPECT_EQ(load(fsdp, {"gpu_ids='3,1'"}).config.launch.gpu_ids, (std::vector<int>{3, 1}));
  EXPECT_EQ(load(fsdp, {"gpu_ids=2"}).config.launch.num_processes, 1);
  EXPECT_EQ(load(fsdp, {"use_cpu=true"}).config.launch.num_processes, 1);
  EXPECT_THAT(load(fsdp, {"use_cpu=true"}).config.launch.gpu_ids, IsEmpty());
  EXPECT_EQ(load("distributed_type: NO\n" + training()).config.launch.num_processes, 1);
  // A program may use several GPUs in one process.
  EXPECT_EQ(load("distributed_type: NO\ngpu_ids: 0,2\n", {}, true).config.launch.gpu_ids,
            (std::vector<int>{0, 2}));
  EXPECT_EQ(error_of(fsdp, {"num_processes=5"}),
            "--set num_processes=5: 5 processes are asked for, but 4 GPUs are "
            "usable here");
  const LaunchConfig shared = load("launch: {backend: gloo}\n" + fsdp, {"num_processes=5"}).config.launch;
  EXPECT_EQ(shared.num_processes, 5);
  EXPECT_EQ(shared.gpu_ids, (std::vector<int>{0, 1, 2, 3}));
  // The backend of the engine does not concern a program.
  for (const char* backend : {"auto", "gloo"}) {
    const auto launch = load(fmt::format("launch: {{backend: {}}}\n", backend), {"num_processes=5"}, true);
    EXPECT_EQ(launch.config.launch.num_processes, 5);
  }
  EXPECT_EQ(error_of(fsdp, {"gpu_ids=4"}), "--set gpu_ids=4: 'gpu_ids' names GPU 4, but 4 are visible here");
  EXPECT_EQ(error_of("launch: {backend: shm}\n" + fsdp),
            "run.yaml:1:19: 'launch.backend: shm' is for CPU ranks, and this run has GPUs");
  EXPECT_EQ(load("launch: {backend: shm}\n" + fsdp, {"use_cpu=true"}).config.launch.backend, Backend::kShm);
  EXPECT_EQ(error_of(fsdp, {"gpu_ids=[1, 1]"}), "--set gpu_ids=[1, 1]: 'gpu_ids' names GPU 1 twice");
  EXPECT_EQ(error_of(fsdp, {"gpu_ids=[a]"}),
            "--set gpu_ids=[a]: 'gpu_ids' must be 'all' or numbers of GPUs, found 'a'");
}

}  // namespace
}  // namespace accel::config
