#include "ckpt/torchscript_classes.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::IsEmpty;

TEST(TorchscriptClassesTest, ReadsTheListsOfEachModule) {
  const auto classes = parse_script_classes(R"py(class Net(Module):
  __parameters__ = ["weight", "bias", ]
  __buffers__ = ["steps", ]
  weight : Tensor
  bias : Tensor
  def forward(self: __torch__.Net) -> Tensor:
    __parameters__ = ["not", "this"]
    return self.weight
class Old(Module):
  __parameters__ = []
class Pair(NamedTuple):
  a : Tensor
class Plain:
  x : int)py");
  ASSERT_EQ(classes.size(), 4U);
  EXPECT_TRUE(classes.at("Net").is_module);
  EXPECT_THAT(classes.at("Net").parameters, ElementsAre("weight", "bias"));
  EXPECT_THAT(*classes.at("Net").buffers, ElementsAre("steps"));
  EXPECT_THAT(classes.at("Old").parameters, IsEmpty());
  EXPECT_FALSE(classes.at("Old").buffers);
  EXPECT_FALSE(classes.at("Pair").is_module);
  EXPECT_FALSE(classes.at("Plain").is_module);
}

TEST(TorchscriptClassesTest, SurvivesAnything) {
  EXPECT_TRUE(parse_script_classes("").empty());
  EXPECT_TRUE(parse_script_classes("  __parameters__ = [\"a\"]\n\n\n").empty());
  EXPECT_EQ(parse_script_classes("class ").size(), 1U);
  (void)error_of(ErrorKind::kCorrupt,
                 [] { (void)parse_script_classes("class A(Module):\n  __buffers__ = [\"a, ]\n"); });
}

}  // namespace
}  // namespace accel::ckpt
