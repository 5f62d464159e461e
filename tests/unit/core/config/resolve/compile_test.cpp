#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_file_fixture.hpp"
#include "core/config/resolve/no_effect.hpp"

namespace accel::config {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

using CompileConfigTest = testing::ConfigFileTest;

TEST_F(CompileConfigTest, InductorAloneRunsCompiledCode) {
  const std::string on_cpu = "use_cpu: true\n" + training();
  const Config c =
      load("dynamo_config: {dynamo_backend: inductor, dynamo_use_fullgraph: true}\n" + on_cpu).config;
  EXPECT_TRUE(c.training->compile.is_on());
  EXPECT_TRUE(c.training->compile.fullgraph);
  EXPECT_TRUE(load("dynamo_backend: INDUCTOR\n" + on_cpu).config.training->compile.is_on());
  for (const char* backend : {"NO", "EAGER", "aot_eager"}) {
    const LoadedConfig loaded =
        load(fmt::format("dynamo_config: {{dynamo_backend: '{}'}}\n{}", backend, on_cpu));
    EXPECT_FALSE(loaded.config.training->compile.is_on()) << backend;
    EXPECT_THAT(settings_without_effect(loaded),
                Contains(HasSubstr("'dynamo_config.backend' has no effect")));
  }
}

TEST_F(CompileConfigTest, CompiledCodeNeedsACpuAndNoFloat8) {
  const std::string inductor = "dynamo_backend: INDUCTOR\n";
  EXPECT_THAT(
      error_of(inductor + "use_cpu: true\nmixed_precision: fp8\nnum_processes: 1\n" + training()),
      HasSubstr("'dynamo_backend: INDUCTOR' runs compiled code, and not with 'mixed_precision: fp8'"));
  EXPECT_THAT(error_of(inductor +
                       "use_cpu: true\ndistributed_type: MULTI_CPU\nnum_processes: 2\n"
                       "parallelism_config: {tp_size: 2}\n" +
                       training()),
              HasSubstr("and not with tp_size, sp_size or cp_size above 1"));
  gpus_ = 1;
  EXPECT_THAT(error_of(inductor + "use_cpu: false\nnum_processes: 1\n" + training()),
              HasSubstr("which is for CPUs alone"));
}

}  // namespace
}  // namespace accel::config
