#include "core/machine/batch_system.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace accel::machine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BatchSystem with(const std::map<std::string, std::string>& variables) {
  return find_batch_system([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(BatchSystemTest, IsNotThere) {
  const BatchSystem none = with({});
  EXPECT_THAT(none.found, IsEmpty());
  EXPECT_EQ(none.num_machines, std::nullopt);
  EXPECT_EQ(none.why_not, "");
}

TEST(BatchSystemTest, IsABatchScriptOfSlurm) {
  const BatchSystem slurm = with({{"SLURM_JOB_ID", "17"}});
  EXPECT_THAT(slurm.found, ElementsAre("Slurm, job 17"));
  EXPECT_EQ(slurm.num_machines, std::nullopt);
}

TEST(BatchSystemTest, IsAStepOfSlurmOnTwoNodes) {
  const std::map<std::string, std::string> step = {
      {"SLURM_JOB_ID", "17"}, {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NUM_NODES", "2"},
      {"SLURM_NODEID", "1"},  {"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_SIZE", "2"},
      {"PMI_RANK", "1"}};
  const BatchSystem slurm = with(step);
  EXPECT_THAT(slurm.found, ElementsAre("Slurm, job 17, step 0", "PMI, process 1 of 2"));
  EXPECT_EQ(slurm.num_machines, 2);
  EXPECT_EQ(slurm.machine_rank, 1);
  auto many = step;
  many["SLURM_STEP_NUM_TASKS"] = "8";
  EXPECT_THAT(with(many).why_not, HasSubstr("srun starts 8 tasks on 2 nodes"));
}

TEST(BatchSystemTest, IsOpenMpi) {
  const BatchSystem mpi = with(
      {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_THAT(mpi.found, ElementsAre("Open MPI, process 3 of 4"));
  EXPECT_EQ(mpi.num_machines, 4);
  EXPECT_EQ(mpi.machine_rank, 3);
}

}  // namespace
}  // namespace accel::machine
