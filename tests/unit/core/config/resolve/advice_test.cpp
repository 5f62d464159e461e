#include "core/config/resolve/advice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_file_fixture.hpp"

namespace accel::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AdviceTest : public testing::ConfigFileTest {
 protected:
  AdviceTest() { gpus_ = 2; }
  std::vector<std::string> found(const std::string& fsdp, const std::vector<std::string>& assignments = {}) {
    return advice_for(load(
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {" + fsdp + "}\n" + training(), assignments));
  }
};

TEST_F(AdviceTest, NamesTheDefaultOfVersion1ThatExposesGathers) {
  for (const char* fsdp : {"", "fsdp_version: 1", "fsdp_version: 1, fsdp_forward_prefetch: true",
                           "fsdp_sharding_strategy: HYBRID_SHARD"}) {
    EXPECT_THAT(found(fsdp), ElementsAre(HasSubstr("BACKWARD_PRE"))) << fsdp;
  }
}

TEST_F(AdviceTest, SaysNothingOfWhatTheUserHasChosenOrWhatGathersNothing) {
  for (const char* fsdp : {"fsdp_version: 2", "fsdp_version: 2, fsdp_backward_prefetch: NO_PREFETCH",
                           "fsdp_backward_prefetch: BACKWARD_PRE", "fsdp_backward_prefetch: NO_PREFETCH",
                           "fsdp_sharding_strategy: SHARD_GRAD_OP", "fsdp_sharding_strategy: NO_SHARD"}) {
    EXPECT_THAT(found(fsdp), IsEmpty()) << fsdp;
  }
  EXPECT_THAT(found("", {"use_cpu=true"}), IsEmpty());
  EXPECT_THAT(found("", {"num_processes=1"}), IsEmpty());
  EXPECT_THAT(advice_for(load("distributed_type: MULTI_GPU\nnum_processes: 2\n" + training())), IsEmpty());
}

}  // namespace
}  // namespace accel::config
