#include "core/config/settings/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.hpp"

namespace accel::config {
namespace {

Environment variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(SchedulerTest, TheFirstHostOfASlurmList) {
  EXPECT_EQ(first_host("login"), "login");
  EXPECT_EQ(first_host("login,node[1-3]"), "login");
  EXPECT_EQ(first_host("node[01-03,7],login"), "node01");
  EXPECT_EQ(first_host("node[7]"), "node7");
  EXPECT_EQ(first_host("node[7,9-11]"), "node7");
  EXPECT_EQ(first_host("rack[2-3]-node,other"), "rack2-node");
  EXPECT_EQ(first_host("rack[2-3]n[04-08]"), "rack2n04");
  EXPECT_EQ(first_host("broken[1-"), "broken1");
}

TEST(SchedulerTest, SlurmSaysEverything) {
  const SchedulerSettings found = settings_from_scheduler(variables({{"SLURM_STEP_NUM_NODES", "3"},
                                                                     {"SLURM_STEP_NUM_TASKS", "3"},
                                                                     {"SLURM_NODEID", "2"},
                                                                     {"SLURM_STEP_NODELIST", "n[4-6]"},
                                                                     {"SLURM_JOB_ID", "12"},
                                                                     {"SLURM_STEP_ID", "1"}}));
  EXPECT_EQ(found.machines.get<std::int64_t>("num_machines"), 3);
  EXPECT_EQ(found.machines.get<std::int64_t>("machine_rank"), 2);
  EXPECT_EQ(found.address.get<std::string>("main_process_ip"), "n4");
  EXPECT_EQ(found.address.get<std::int64_t>("main_process_port"), 15'121);
}

TEST(SchedulerTest, SeveralSlurmTasksOnANodeAreAnError) {
  try {
    (void)settings_from_scheduler(
        variables({{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_NODEID", "0"}}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("8 tasks on 2 nodes"));
  }
}

TEST(SchedulerTest, MpiSaysWhichMachineThisIs) {
  for (const auto& names :
       {std::array{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        std::array{"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"}}) {
    const SchedulerSettings found =
        settings_from_scheduler(variables({{names[0], "4"}, {names[1], "3"}, {names[2], "1"}}));
    EXPECT_EQ(found.machines.get<std::int64_t>("num_machines"), 4);
    EXPECT_EQ(found.machines.get<std::int64_t>("machine_rank"), 3);
    EXPECT_FALSE(found.address.has("main_process_ip"));
  }
}

TEST(SchedulerTest, OneMachineOrNoSchedulerSaysNothing) {
  for (const auto& values : std::vector<std::map<std::string, std::string>>{
           {},
           {{"SLURM_JOB_ID", "1"}, {"SLURM_NNODES", "2"}},  // A batch script.
           {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NODEID", "0"}},
           {{"SLURM_STEP_NUM_NODES", "x"}, {"SLURM_NODEID", "0"}},
           {{"OMPI_COMM_WORLD_SIZE", "4"},
            {"OMPI_COMM_WORLD_RANK", "3"},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
           {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}}}) {
    const SchedulerSettings found = settings_from_scheduler(variables(values));
    EXPECT_FALSE(found.machines.has("num_machines"));
    EXPECT_FALSE(found.address.has("main_process_ip"));
  }
}

}  // namespace
}  // namespace accel::config
