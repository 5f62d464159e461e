#include "core/machine/variables.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::machine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(VariablesTest, TakesThoseThatMatterSorted) {
  EXPECT_THAT(relevant_variables({"NCCL_DEBUG=INFO", "HOME=/root", "FSDP_VERSION=2", "OMP_NUM_THREADS=",
                                  "NONSENSE", "RANK=1", "RANKED=1", "XNCCL_Y=1", "LD_PRELOAD=/a:b?c=d:/e"}),
              ElementsAre(Pair("FSDP_VERSION", "2"), Pair("LD_PRELOAD", "/a:b?c=d:/e"),
                          Pair("NCCL_DEBUG", "INFO"), Pair("OMP_NUM_THREADS", ""), Pair("RANK", "1")));
}

TEST(VariablesTest, OnlyNamesAnUnknownVariable) {
  EXPECT_THAT(relevant_variables({"SLURM_JWT=abc", "ACCEL_PIN=4711", "NCCL_NO_SUCH="}),
              ElementsAre(Pair("ACCEL_PIN", "(set, not shown)"), Pair("NCCL_NO_SUCH", ""),
                          Pair("SLURM_JWT", "(set, not shown)")));
}

TEST(VariablesTest, DoesNotShowANameThatHasAnotherForm) {
  EXPECT_THAT(relevant_variables({"NCCL_hf_abcdefgh=1", "NCCL_ALGO PROTO=1", "NCCL_A\nB=1",
                                  "NCCL_AKIAIOSFODNN7EXAMPLEAKIAIOSFODNN7EXAMPLEAKIAIOSFODNN7=1"}),
              IsEmpty());
}

}  // namespace
}  // namespace accel::machine
