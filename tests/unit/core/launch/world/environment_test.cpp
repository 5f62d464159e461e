#include "core/launch/world/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "core/config/settings/settings.hpp"

namespace accel::launch {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

const Environment kEmpty = [](const std::string&) { return std::nullopt; };

config::LoadedConfig program(std::string_view yaml) {
  config::LoadedConfig loaded;
  loaded.settings =
      config::settings_from_yaml(config::parse_yaml(yaml, {config::Origin::Layer::kFile, "a.yaml"}));
  return loaded;
}

TEST(EnvironmentTest, RanksFollowTheMachine) {
  const World world{8, 4, 4, 1, 2, "10.0.0.1", 29501, "run"};
  const Variables v = torchrun_variables(world, 2, "/tmp/error.json");
  EXPECT_EQ(v.at("RANK"), "6");
  EXPECT_EQ(v.at("LOCAL_RANK"), "2");
  EXPECT_EQ(v.at("WORLD_SIZE"), "8");
  EXPECT_EQ(v.at("LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(v.at("GROUP_RANK"), "1");
  EXPECT_EQ(v.at("GROUP_WORLD_SIZE"), "2");
  EXPECT_EQ(v.at("MASTER_ADDR"), "10.0.0.1");
  EXPECT_EQ(v.at("MASTER_PORT"), "29501");
  EXPECT_EQ(v.at("TORCHELASTIC_ERROR_FILE"), "/tmp/error.json");
}

TEST(EnvironmentTest, CpuRanksShareThePhysicalCores) {
  config::LoadedConfig loaded = program("");
  loaded.config.launch.local_processes = 4;
  loaded.config.launch.use_cpu = true;
  EXPECT_EQ(machine_variables(loaded, 16, kEmpty).at("OMP_NUM_THREADS"), "4");
  EXPECT_EQ(machine_variables(loaded, 2, kEmpty).at("OMP_NUM_THREADS"), "1");
  loaded.config.launch.use_cpu = false;
  EXPECT_EQ(machine_variables(loaded, 16, kEmpty).at("OMP_NUM_THREADS"), "1");
  loaded.config.fsdp.offload_params = true;  // The optimizer works on the host.
  EXPECT_EQ(machine_variables(loaded, 16, kEmpty).at("OMP_NUM_THREADS"), "4");
}

TEST(EnvironmentTest, ExpandableSegmentsJoinTheOptionsOfTheUser) {
  using Set = std::map<std::string, std::string>;
  config::LoadedConfig loaded = program("");
  const auto of = [&](Set set) {
    const Environment environment = [&](const std::string& name) {
      const auto found = set.find(name);
      return found == set.end() ? std::nullopt : std::optional(found->second);
    };
    Variables found;
    for (const auto& [name, value] : machine_variables(loaded, 4, environment))
      if (name.find("ALLOC_CONF") != std::string::npos) found[name] = value;
    return found;
  };
  EXPECT_THAT(of({}), IsEmpty());
  loaded.config.launch.expandable_segments = true;
  constexpr const char* kCuda = "PYTORCH_CUDA_ALLOC_CONF";
  constexpr const char* kAny = "PYTORCH_ALLOC_CONF";
  EXPECT_EQ(of({}), (Variables{{kCuda, "expandable_segments:True"}}));
  EXPECT_EQ(of({{kCuda, "max_split_size_mb:128"}}),
            (Variables{{kCuda, "max_split_size_mb:128,expandable_segments:True"}}));
  EXPECT_EQ(of({{kAny, "max_split_size_mb:128"}}),
            (Variables{{kAny, "max_split_size_mb:128,expandable_segments:True"}}));
  // torch reads only the first of the two.
  EXPECT_EQ(of({{kAny, "a:1"}, {kCuda, "b:2"}}), (Variables{{kCuda, "b:2,expandable_segments:True"}}));
  EXPECT_THAT(of({{kCuda, "expandable_segments:False"}}), IsEmpty());
  loaded.config.launch.use_cpu = true;
  EXPECT_THAT(of({}), IsEmpty());
}

TEST(EnvironmentTest, WhatTheUserHasSetStays) {
  const Environment set = [](const std::string&) { return std::optional<std::string>("7"); };
  EXPECT_THAT(machine_variables(program(""), 4, set), Each(Pair(StartsWith("CUDA"), "")));
}

TEST(EnvironmentTest, MallocKeepsWhatAStepNeedsAgain) {
  EXPECT_THAT(worker_variables(kEmpty).at("GLIBC_TUNABLES"), HasSubstr("glibc.malloc.hugetlb=1"));
  const auto beside = [](const std::string& theirs, const std::string& value) {
    return worker_variables(
        [&](const std::string& name) { return name == theirs ? std::optional(value) : std::nullopt; });
  };
  EXPECT_THAT(beside("MALLOC_MMAP_THRESHOLD_", ""), IsEmpty());
  EXPECT_THAT(beside("MALLOC_TRIM_THRESHOLD_", ""), IsEmpty());
  EXPECT_THAT(beside("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX:glibc.malloc.check=3"), IsEmpty());
  EXPECT_EQ(beside("GLIBC_TUNABLES", ""), worker_variables(kEmpty));
  EXPECT_EQ(beside("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX").at("GLIBC_TUNABLES"),
            "glibc.cpu.hwcaps=-AVX:" + worker_variables(kEmpty).at("GLIBC_TUNABLES"));
}

TEST(EnvironmentTest, ChosenGpusCountWhatIsVisible) {
  config::LoadedConfig loaded = program("gpu_ids: 2,0");
  loaded.config.launch.gpu_ids = {2, 0};
  EXPECT_EQ(machine_variables(loaded, 4, kEmpty).at("CUDA_VISIBLE_DEVICES"), "2,0");
  const Environment visible = [](const std::string& name) {
    return name == "CUDA_VISIBLE_DEVICES" ? std::optional<std::string>("GPU-a,5,GPU-c") : std::nullopt;
  };
  EXPECT_EQ(machine_variables(loaded, 4, visible).at("CUDA_VISIBLE_DEVICES"), "GPU-c,GPU-a");
  config::LoadedConfig all = program("gpu_ids: all");
  all.config.launch.gpu_ids = {0, 1};
  EXPECT_THAT(machine_variables(all, 4, kEmpty), Not(Contains(Key("CUDA_VISIBLE_DEVICES"))));
}

TEST(EnvironmentTest, TellsAScriptItsFsdpConfiguration) {
  config::LoadedConfig loaded = program(
      "debug: true\nfsdp_config: {version: 2, reshard_after_forward: True, transformer_layer_cls_to_wrap: "
      "'A, B', "
      "offload_params: true}");
  loaded.config.distributed_type = config::DistributedType::kFsdp;
  loaded.config.mixed_precision = "bf16";
  const Variables v = accelerate_variables(loaded);
  EXPECT_EQ(v.at("ACCELERATE_USE_FSDP"), "true");
  EXPECT_EQ(v.at("ACCELERATE_MIXED_PRECISION"), "bf16");
  EXPECT_EQ(v.at("ACCELERATE_DEBUG_MODE"), "true");
  EXPECT_EQ(v.at("FSDP_VERSION"), "2");
  EXPECT_EQ(v.at("FSDP_RESHARD_AFTER_FORWARD"), "true");
  EXPECT_EQ(v.at("FSDP_OFFLOAD_PARAMS"), "true");
  EXPECT_EQ(v.at("FSDP_TRANSFORMER_CLS_TO_WRAP"), "A,B");
  EXPECT_EQ(v.at("FSDP_MIN_NUM_PARAMS"), "100000000");
  EXPECT_THAT(v,
              AllOf(Not(Contains(Key("FSDP_AUTO_WRAP_POLICY"))), Not(Contains(Key("ACCELERATE_USE_CPU")))));
}

TEST(EnvironmentTest, TellsAScriptItsFp8Configuration) {
  config::LoadedConfig loaded = program(
      "fp8_config: {backend: TE, fp8_margin: 2, use_autocast_during_eval: true, "
      "override_linear_precision: [true, false, true]}");
  loaded.config.mixed_precision = "fp8";
  const Variables v = accelerate_variables(loaded);
  EXPECT_EQ(v.at("ACCELERATE_FP8_BACKEND"), "TE");
  EXPECT_EQ(v.at("ACCELERATE_FP8_MARGIN"), "2");
  EXPECT_EQ(v.at("ACCELERATE_FP8_INTERVAL"), "1");
  EXPECT_EQ(v.at("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL"), "true");
  EXPECT_EQ(v.at("ACCELERATE_FP8_OVERRIDE_DGRAD"), "false");
  EXPECT_EQ(v.at("ACCELERATE_FP8_OVERRIDE_WGRAD"), "true");
  EXPECT_THAT(v, Not(Contains(Key("ACCELERATE_FP8_OPTIMIZATION_LEVEL"))));

  loaded.config.mixed_precision = "bf16";
  EXPECT_THAT(accelerate_variables(loaded), Not(Contains(Key(StartsWith("ACCELERATE_FP8_")))));
  config::LoadedConfig text = program("fp8_config: {override_linear_precision: '(True, false, False)'}");
  text.config.mixed_precision = "fp8";
  EXPECT_EQ(accelerate_variables(text).at("ACCELERATE_FP8_OVERRIDE_FPROP"), "True");
  EXPECT_EQ(accelerate_variables(text).at("ACCELERATE_FP8_OVERRIDE_WGRAD"), "False");
  config::LoadedConfig wrong = program("fp8_config: {override_linear_precision: [true]}");
  wrong.config.mixed_precision = "fp8";
  EXPECT_THROW(accelerate_variables(wrong), Error);
}

TEST(EnvironmentTest, TorchCompileIsPassedOn) {
  const Variables v =
      accelerate_variables(program("dynamo_config: {dynamo_backend: inductor, dynamo_use_dynamic: true}"));
  EXPECT_EQ(v.at("ACCELERATE_DYNAMO_BACKEND"), "INDUCTOR");
  EXPECT_EQ(v.at("ACCELERATE_DYNAMO_MODE"), "default");
  EXPECT_EQ(v.at("ACCELERATE_DYNAMO_USE_DYNAMIC"), "true");
  EXPECT_EQ(accelerate_variables(program("dynamo_backend: EAGER")).at("ACCELERATE_DYNAMO_BACKEND"), "EAGER");
  EXPECT_EQ(accelerate_variables(program("dynamo_backend: no")).at("ACCELERATE_DYNAMO_BACKEND"), "NO");
}

TEST(EnvironmentTest, WithoutFsdpNothingIsSaidOfIt) {
  const Variables v = accelerate_variables(program("use_cpu: true"));
  EXPECT_THAT(v, Each(Key(StartsWith("ACCELERATE_"))));
  EXPECT_EQ(v.at("ACCELERATE_USE_CPU"), "True");
}

}  // namespace
}  // namespace accel::launch
