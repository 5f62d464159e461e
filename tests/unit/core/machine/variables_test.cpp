#include "core/machine/variables.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::machine {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(VariablesTest, TakesThoseThatMatterSorted) {
  EXPECT_THAT(relevant_variables({"NCCL_DEBUG=INFO", "HOME=/root", "FSDP_VERSION=2", "OMP_NUM_THREADS=",
                                  "NONSENSE", "RANK=1", "RANKED=1", "ACCELERATE_X=a=b", "XNCCL_Y=1"}),
              ElementsAre(Pair("ACCELERATE_X", "a=b"), Pair("FSDP_VERSION", "2"), Pair("NCCL_DEBUG", "INFO"),
                          Pair("OMP_NUM_THREADS", ""), Pair("RANK", "1")));
}

TEST(VariablesTest, MasksSecrets) {
  EXPECT_THAT(relevant_variables({"SLURM_JWT=abc", "ACCEL_WORKER=/opt/worker"}),
              ElementsAre(Pair("ACCEL_WORKER", "/opt/worker"), Pair("SLURM_JWT", "(masked)")));
  for (const auto& [name, value] : {
           std::pair("ACCEL_TOKEN", "x"),
           std::pair("accelerate_password", "x"),
           std::pair("NCCL_SIGNING_KEY", "x"),
           std::pair("SLURM_COMMENT", "hf_abcdefghijklmnopqrst"),
           std::pair("SLURM_COMMENT", "run --with=sk-abcdefghijklmnop now"),
           std::pair("SLURM_COMMENT", "0123456789abcdef0123456789abcdef"),
           std::pair("MASTER_ADDR", "https://me:word@host/path"),
           std::pair("MASTER_ADDR", "https://me@host/path"),
           std::pair("ACCEL_DB_PASS", "x"),
           std::pair("ACCEL_DB_PWD", "x"),
           std::pair("ACCEL_KEY1", "x"),
           std::pair("NCCL_X", "https://user:pa/ss@host/x"),
           std::pair("NCCL_X", "http://a/,https://u:secretpw@h/"),
           std::pair("NCCL_X", "user:secretpw@host:1/x"),
           std::pair("NCCL_X", "https://h/?sig=0123456789abcdef0123456789abcdef01&x=1"),
           std::pair("LD_LIBRARY_PATH", "/a/hf_abcdefghijklmnopqrst/"),
           std::pair("SLURM_B", "Bearer:AbCd+0123efgh/4567ijkl89mnop+qrst/uv=="),
       })
    EXPECT_TRUE(looks_secret(name, value)) << name << '=' << value;
}

TEST(VariablesTest, ShowsWhatIsNoSecret) {
  for (const auto& [name, value] : {
           std::pair("CUDA_VISIBLE_DEVICES", "GPU-8f3c2f0a-1111-2222-3333-444455556666"),
           std::pair("SLURM_JOB_NODELIST", "node[01-03,7],login"),
           std::pair("SLURM_JOB_START_TIME", "17640000000000000000000000000000000"),
           std::pair("LD_LIBRARY_PATH", "/usr/local/cuda/lib64:/opt/a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6/lib"),
           std::pair("MASTER_ADDR", "https://host/a@b"),
           std::pair("ACCEL_WORKER", ""),
           std::pair("CUDA_MODULE_LOADING", "LAZY"),
           std::pair("GLOO_SOCKET_IFNAME", "eth0"),
       })
    EXPECT_FALSE(looks_secret(name, value)) << name << '=' << value;
}

}  // namespace
}  // namespace accel::machine
