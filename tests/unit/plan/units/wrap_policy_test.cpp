#include "plan/units/wrap_policy.hpp"

#include <gmock/gmock.h>

#include "base/error.hpp"
#include "plan/small_gpt.hpp"

namespace accel {
namespace {

using fixtures::gpt;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

config::FsdpConfig wrap(std::vector<std::string> classes) {
  config::FsdpConfig config;
  config.auto_wrap_policy = config::WrapPolicy::kTransformer;
  config.transformer_layer_cls_to_wrap = std::move(classes);
  return config;
}

std::vector<std::string> by_size(const ModelStructure& model, int version, std::int64_t least) {
  config::FsdpConfig config;
  config.version = version;
  config.auto_wrap_policy = config::WrapPolicy::kSize;
  config.min_num_params = least;
  return wrapped_modules(model, config);
}

TEST(WrapPolicyTest, ByClassInPreOrder) {
  EXPECT_THAT(wrapped_modules(gpt(), wrap({"Block"})),
              ElementsAre("blocks.0", "blocks.1", "blocks.1.inner", "blocks.10"));
  EXPECT_THAT(wrapped_modules(gpt(), {}), IsEmpty());
}

TEST(WrapPolicyTest, AnUnknownClassNamesTheOnesThereAre) {
  try {
    config::FsdpConfig config = wrap({"LlamaDecoderLayer"});
    config.wrap_origin = "gpt.yaml:3:5: 'classes'";
    (void)wrapped_modules(gpt(), config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.message(),
              "gpt.yaml:3:5: 'classes': no module of class 'LlamaDecoderLayer' in the model");
    EXPECT_THAT(error.advice(), HasSubstr("Block, Embedding, GPT"));
  }
  EXPECT_THROW((void)wrapped_modules(gpt(), wrap({})), Error);
}

// Elements: tokens and head 32, which they share; blocks 28; blocks.0 and its Linear 16; blocks.1 8, half of
// it in blocks.1.inner; blocks.10 4.
TEST(WrapPolicyTest, BySizeInVersion2) {
  EXPECT_THAT(by_size(gpt(), 2, 32), IsEmpty());
  EXPECT_THAT(by_size(gpt(), 2, 16), ElementsAre("tokens", "head"));
  EXPECT_THAT(by_size(gpt(), 2, 15), ElementsAre("tokens", "blocks.0", "blocks.0.up", "head"));
  EXPECT_THAT(by_size(gpt(), 2, 4), ElementsAre("tokens", "blocks.0", "blocks.0.up", "blocks.1", "head"));
  EXPECT_THAT(by_size(gpt(), 2, 0), IsEmpty());
}

TEST(WrapPolicyTest, BySizeInVersion1) {
  EXPECT_THAT(by_size(gpt(), 1, 33), IsEmpty());
  EXPECT_THAT(by_size(gpt(), 1, 32), ElementsAre("tokens", "head"));
  EXPECT_THAT(by_size(gpt(), 1, 16), ElementsAre("tokens", "blocks.0.up", "head"));
  // What is left of blocks has 12 elements, but a ModuleList is not wrapped.
  EXPECT_THAT(by_size(gpt(), 1, 12), ElementsAre("tokens", "blocks.0.up", "head"));
  EXPECT_THAT(by_size(gpt(), 1, 8), ElementsAre("tokens", "blocks.0.up", "blocks.1", "head"));
  EXPECT_THAT(by_size(gpt(), 1, 4),
              ElementsAre("tokens", "blocks.0.up", "blocks.1", "blocks.1.inner", "blocks.10", "head"));
  EXPECT_THAT(by_size(gpt(), 1, 0), IsEmpty());
}

TEST(WrapPolicyTest, VersionOneDoesNotLookIntoAnAttention) {
  ModelStructure model = gpt();
  model.modules[3].class_name = "MultiheadAttention";
  EXPECT_THAT(by_size(model, 1, 16), ElementsAre("tokens", "head"));
  EXPECT_THAT(by_size(model, 2, 15), ElementsAre("tokens", "blocks.0", "blocks.0.up", "head"));
}

TEST(WrapPolicyTest, AModelWithoutModules) {
  EXPECT_THAT(by_size({}, 1, 1), IsEmpty());
  EXPECT_THAT(by_size({}, 2, 1), IsEmpty());
}

}  // namespace
}  // namespace accel
