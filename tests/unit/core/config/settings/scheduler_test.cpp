#include "core/config/settings/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.hpp"

namespace accel::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  EXPECT_EQ(found.address.get<std::string>("launch.run_id"), "slurm-12.0.1");
}

TEST(SchedulerTest, ARequeuedSlurmJobIsAnotherRun) {
  const SchedulerSettings found = settings_from_scheduler(variables({{"SLURM_STEP_NUM_NODES", "2"},
                                                                     {"SLURM_NODEID", "0"},
                                                                     {"SLURM_JOB_ID", "12"},
                                                                     {"SLURM_RESTART_COUNT", "3"},
                                                                     {"SLURM_STEP_ID", "0"},
                                                                     {"TORCHELASTIC_RUN_ID", "other"}}));
  EXPECT_EQ(found.address.get<std::string>("launch.run_id"), "slurm-12.3.0");
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

/// The message with which settings_from_scheduler() refuses.
std::string refusal(std::map<std::string, std::string> values) {
  try {
    (void)settings_from_scheduler(variables(std::move(values)));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message() + "; " + error.advice();
  }
  return "no error";
}

TEST(SchedulerTest, SeveralLaunchersOnOneNodeAreAnError) {
  EXPECT_THAT(refusal({{"SLURM_STEP_NUM_NODES", "1"},
                       {"SLURM_STEP_NUM_TASKS", "8"},
                       {"SLURM_NODEID", "0"},
                       {"SLURM_LOCALID", "3"}}),
              AllOf(HasSubstr("srun starts 8 tasks on 1 node"), HasSubstr("SLURM_LOCALID is 3"),
                    HasSubstr("--ntasks-per-node=1"), HasSubstr("--num-machines 1")));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_RANK", "3"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
              AllOf(HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE is 4"), HasSubstr("--map-by ppr:1:node"),
                    HasSubstr("--num-machines 1")));
  EXPECT_THAT(refusal({{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"MPI_LOCALNRANKS", "2"}}),
              AllOf(HasSubstr("MPI_LOCALNRANKS is 2"), HasSubstr("-ppn 1")));
  // A batch script without srun, and one task of a larger job.
  EXPECT_EQ(
      refusal({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_NNODES", "1"}, {"SLURM_LOCALID", "0"}}),
      "no error");
  EXPECT_EQ(refusal({{"SLURM_STEP_NUM_NODES", "1"},
                     {"SLURM_STEP_NUM_TASKS", "1"},
                     {"SLURM_NTASKS", "8"},
                     {"SLURM_NODEID", "0"},
                     {"SLURM_LOCALID", "0"}}),
            "no error");
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
    EXPECT_FALSE(found.address.has("launch.run_id"));
  }
}

TEST(SchedulerTest, KubeflowSaysEverything) {
  SchedulerSettings found = settings_from_scheduler(variables({{"PET_NNODES", "2"},
                                                               {"PET_NODE_RANK", "1"},
                                                               {"PET_MASTER_ADDR", "job-master-0"},
                                                               {"PET_MASTER_PORT", "23456"},
                                                               {"PET_NPROC_PER_NODE", "8"},
                                                               {"JOB_COMPLETION_INDEX", "1"}}));
  EXPECT_EQ(found.machines.get<std::int64_t>("num_machines"), 2);
  EXPECT_EQ(found.machines.get<std::int64_t>("machine_rank"), 1);
  EXPECT_EQ(found.machines.find("machine_rank")->origin.source, "PET_NODE_RANK");
  EXPECT_EQ(found.address.get<std::string>("main_process_ip"), "job-master-0");
  EXPECT_EQ(found.address.get<std::int64_t>("main_process_port"), 23456);
  EXPECT_EQ(found.address.get<std::int64_t>("num_processes"), 16);
  found = settings_from_scheduler(
      variables({{"PET_NNODES", "3:3"}, {"PET_NODE_RANK", "0"}, {"PET_NPROC_PER_NODE", "auto"}}));
  EXPECT_EQ(found.machines.get<std::int64_t>("num_machines"), 3);
  EXPECT_FALSE(found.address.has("num_processes"));
  // An elastic job has no fixed number of machines.
  found = settings_from_scheduler(variables({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "4"}}));
  EXPECT_EQ(found.address.get<std::int64_t>("num_processes"), 4);
  EXPECT_FALSE(found.machines.has("num_machines"));
  found = settings_from_scheduler(variables({{"PET_NNODES", "1:4"}, {"PET_NODE_RANK", "0"}}));
  EXPECT_FALSE(found.machines.has("num_machines"));
}

TEST(SchedulerTest, TheOperatorOfPytorchJobsCountsPods) {
  const std::map<std::string, std::string> pod = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                                                  {"WORLD_SIZE", "3"},
                                                  {"RANK", "2"},
                                                  {"MASTER_ADDR", "job-master-0"},
                                                  {"MASTER_PORT", "23456"}};
  const SchedulerSettings found = settings_from_scheduler(variables(pod));
  EXPECT_EQ(found.machines.get<std::int64_t>("num_machines"), 3);
  EXPECT_EQ(found.machines.get<std::int64_t>("machine_rank"), 2);
  EXPECT_EQ(found.address.get<std::string>("main_process_ip"), "job-master-0");
  EXPECT_EQ(found.address.get<std::int64_t>("main_process_port"), 23456);
  // A rank that torchrun has started has the same variables, and counts ranks.
  auto rank = pod;
  rank["LOCAL_RANK"] = "0";
  EXPECT_FALSE(settings_from_scheduler(variables(rank)).machines.has("num_machines"));
  auto elsewhere = pod;
  elsewhere.erase("KUBERNETES_SERVICE_HOST");
  EXPECT_FALSE(settings_from_scheduler(variables(elsewhere)).machines.has("num_machines"));
}

TEST(SchedulerTest, AnIndexedJobSaysWhichMachineThisIs) {
  const SchedulerSettings found = settings_from_scheduler(variables({{"JOB_COMPLETION_INDEX", "3"}}));
  EXPECT_FALSE(found.machines.has("num_machines"));
  EXPECT_EQ(found.index.get<std::int64_t>("machine_rank"), 3);
}

TEST(SchedulerTest, TheRunIsThatOfMpiOrTorchrun) {
  const auto run_id = [](std::map<std::string, std::string> values) {
    return settings_from_scheduler(variables(std::move(values))).address.get<std::string>("launch.run_id");
  };
  EXPECT_EQ(run_id({{"OMPI_COMM_WORLD_SIZE", "2"},
                    {"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                    {"PMIX_NAMESPACE", "prterun-a-1@1"}}),
            "prterun-a-1@1");
  EXPECT_EQ(run_id({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "1"}, {"PMI_JOBID", "7.0"}}),
            "7.0");
  EXPECT_EQ(run_id({{"PET_RDZV_ID", "job-a"}, {"TORCHELASTIC_RUN_ID", "job-b"}}), "job-a");
  EXPECT_EQ(run_id({{"PET_RDZV_ID", "none"}, {"TORCHELASTIC_RUN_ID", "job-b"}}), "job-b");
  EXPECT_EQ(run_id({{"TORCHELASTIC_RUN_ID", ""}}), std::nullopt);
}

TEST(SchedulerTest, OneMachineOrNoSchedulerSaysNothing) {
  for (const auto& values : std::vector<std::map<std::string, std::string>>{
           {},
           {{"SLURM_JOB_ID", "1"}, {"SLURM_NNODES", "2"}},  // A batch script.
           {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NODEID", "0"}},
           {{"SLURM_STEP_NUM_NODES", "x"}, {"SLURM_NODEID", "0"}},
           {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}}}) {
    const SchedulerSettings found = settings_from_scheduler(variables(values));
    EXPECT_FALSE(found.machines.has("num_machines"));
    EXPECT_FALSE(found.address.has("main_process_ip"));
  }
}

}  // namespace
}  // namespace accel::config
