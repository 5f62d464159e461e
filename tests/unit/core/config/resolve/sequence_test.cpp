#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_file_fixture.hpp"
#include "core/config/mesh.hpp"

namespace accel::config {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class SequenceTest : public testing::ConfigFileTest {
 protected:
  /// A run on four ranks, with these keys of parallelism_config and of the training section.
  [[nodiscard]] std::string yaml(const std::string& sizes, const std::string& data = "sequence_length: 8",
                                 const std::string& model = "inputs: [input_ids, position_ids]",
                                 const std::string& fsdp = "version: 2") const {
    return fmt::format(
        "parallelism_config: {{{1}}}\ndistributed_type: FSDP\nnum_processes: 4\nfsdp_config: {{{4}}}\n"
        "training: {{max_steps: 1, model: {{path: {0}/gpt.pt, {3}}},\n"
        "  data: {{train: {{format: documents, path: {0}/a.txt, packing: none, {2}}}}}}}\n",
        dir_.path().string(), sizes, data, model, fsdp);
  }
};

TEST_F(SequenceTest, RanksThatShareASequenceAreShards) {
  const Config config = load(yaml("sp_size: 2")).config;
  const Mesh mesh = mesh_of(config);
  EXPECT_EQ(mesh.size(Axis::kSp), 2);
  EXPECT_EQ(mesh.size(Axis::kDpShard), 2);
  EXPECT_EQ(mesh.data_size(), 2);
  EXPECT_EQ(mesh.shards(), 4);
  const Mesh replicas = mesh_of(load(yaml("sp_size: 2, dp_replicate_size: 2")).config);
  EXPECT_EQ(replicas.replicas(), 2);
  EXPECT_EQ(replicas.shards(), 2);
  EXPECT_EQ(mesh_of(load(yaml("sp_size: 2, dp_shard_size: 2, dp_replicate_size: 1")).config).replicas(), 1);
  EXPECT_EQ(mesh_of(load(yaml("sp_size: 1")).config).size(Axis::kSp), 1);
}

TEST_F(SequenceTest, ContextParallelismRunsAsSequenceParallelism) {
  const LoadedConfig loaded = load(yaml("cp_size: 4"));
  EXPECT_EQ(mesh_of(loaded.config).size(Axis::kSp), 4);
  EXPECT_THAT(loaded.warnings,
              Contains(HasSubstr("'parallelism_config.cp_size: 4' runs as 'parallelism_config.sp_size: 4'")));
  EXPECT_EQ(
      error_of(yaml("cp_size: 2, sp_size: 2")),
      "run.yaml:1:43: 'parallelism_config.sp_size: 2' contradicts 'parallelism_config.cp_size: 2', as in "
      "Accelerate");
}

TEST_F(SequenceTest, SizesThatContradictTheRanksAreRefused) {
  EXPECT_EQ(error_of(yaml("sp_size: 3")),
            "run.yaml:1:31: 'parallelism_config.sp_size: 3' contradicts 4 processes");
  EXPECT_EQ(error_of(yaml("sp_size: 2, dp_shard_size: 4")),
            "run.yaml:1:49: 'parallelism_config.dp_shard_size: 4' contradicts 4 processes of which 2 share a "
            "sequence");
  EXPECT_EQ(error_of(yaml("sp_size: 2", "sequence_length: 8", "inputs: [input_ids, position_ids]",
                          "sharding_strategy: NO_SHARD")),
            "run.yaml:1:31: 'parallelism_config.sp_size: 2' needs the model to be sharded");
  EXPECT_EQ(error_of(yaml("sp_size: 2"), {"distributed_type=MULTI_CPU"}),
            "run.yaml:1:31: 'parallelism_config.sp_size: 2' needs the model to be sharded");
}

TEST_F(SequenceTest, TensorParallelismBesideItIsRefused) {
  for (const char* sizes : {"sp_size: 2, tp_size: 2", "sp_size: 4, tp_size: 2", "cp_size: 2, tp_size: 4"}) {
    EXPECT_THAT(error_of(yaml(sizes)), HasSubstr("is not supported beside sequence parallelism yet"))
        << sizes;
  }
}

TEST_F(SequenceTest, WhatAPartOfASequenceCannotHaveIsRefused) {
  EXPECT_THAT(error_of(yaml("sp_size: 2", "sequence_length: 9")),
              HasSubstr("'training.data.train.sequence_length' is 9, which is not a multiple of the 2 ranks "
                        "that share a sequence"));
  EXPECT_THAT(error_of(yaml("sp_size: 4", "sequence_length: 8, pad_to_multiple_of: 6")),
              HasSubstr("'training.data.train.pad_to_multiple_of' is 6, which is not a multiple of the 4"));
  EXPECT_THAT(error_of(yaml("sp_size: 2", "sequence_length: 8", "inputs: [input_ids]")),
              HasSubstr("'training.model.inputs' has no position_ids"));
  const std::string inputs = "inputs: [input_ids, position_ids], ";
  EXPECT_THAT(error_of(yaml("sp_size: 2", "sequence_length: 8", inputs + "loss: model")),
              HasSubstr("'training.model.loss' is model"));
  EXPECT_THAT(error_of(yaml("sp_size: 2", "sequence_length: 8", inputs + "metrics: {z: 1}")),
              HasSubstr("'training.model.metrics' are scalars"));
  EXPECT_THAT(error_of(yaml("sp_size: 2", "sequence_length: 8", inputs + "class_weights: [1, 2]")),
              HasSubstr("'training.model.class_weights' is not supported for parts of sequences"));
  EXPECT_EQ(error_of(yaml("sp_size: 1", "sequence_length: 9", "inputs: [input_ids]")), "no error");
}

}  // namespace
}  // namespace accel::config
