#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "base/error.hpp"
#include "core/config/settings/settings.hpp"

namespace accel::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(BuiltTest, SaysWhatAnAcceleratorThatIsNotHereWouldNeed) {
  const std::tuple<const char*, const char*, const char*> rows[] = {
      {"MULTI_XPU", "a torch that is built for XPUs", "xccl"},
      {"MULTI_NPU", "torch_npu", "hccl"},
      {"MULTI_MLU", "torch_mlu", "cncl"},
      {"MULTI_MUSA", "torch_musa", "mccl"},
      {"MULTI_SDAA", "torch_sdaa", "tccl"},
      {"MULTI_HPU", "habana_frameworks.torch", "hccl"},
      {"MULTI_NEURON", "torch_neuronx", "neuron"},
  };
  for (const auto& [type, package, backend] : rows) {
    const Settings settings = settings_from_yaml(
        parse_yaml(fmt::format("distributed_type: {}\n", type), {Origin::Layer::kFile, "a.yaml"}));
    try {
      check_built(settings, /*only_launcher=*/true);
      FAIL() << type;
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), StartsWith(fmt::format("a.yaml:1:19: 'distributed_type: {}' asks", type)));
      EXPECT_THAT(error.advice(), StartsWith("what works: NO, MULTI_CPU, MULTI_GPU, FSDP; "));
      EXPECT_THAT(error.advice(), HasSubstr(fmt::format("would need {} of the version", package)));
      EXPECT_THAT(error.advice(), HasSubstr(fmt::format("backend {} (", backend)));
    }
  }
}

}  // namespace
}  // namespace accel::config
