#include "ckpt/torchscript/classes.hpp"

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

TEST(TorchscriptClassesTest, KnowsTypesAndMethodsButNoHooks) {
  const auto classes = parse_script_classes(R"py(class Net(Module):
  __parameters__ = ["weight", ]
  __buffers__ = []
  __forward_pre_hooks__ = ["before", ]
  __forward_hooks__ = ["after_", ]
  __annotations__ = []
  __annotations__["0"] = __torch__.nn.Linear
  weight : Optional[Tensor]
  width : Final[int] = 3
  def forward(self: __torch__.Net,
    x: Tensor) -> Tensor:
    y : Tensor = x
    return y
  def before(self: __torch__.Net) -> Tensor:
    return self.weight
  def after_(self: __torch__.Net) -> Tensor:
    return self.weight
  def other(self: __torch__.Net) -> int:
    return 1
class Next(Module):
  def forward(self) -> int:
    return 2
)py");
  const ScriptClass& net = classes.at("Net");
  EXPECT_EQ(net.types.at("0"), "__torch__.nn.Linear");
  EXPECT_EQ(net.types.at("weight"), "Optional[Tensor]");
  EXPECT_FALSE(net.types.contains("y"));
  ASSERT_EQ(net.methods.size(), 2U);
  EXPECT_EQ(net.methods[0].name, "forward");
  EXPECT_EQ(
      net.methods[0].source,
      "  def forward(self: __torch__.Net,\n    x: Tensor) -> Tensor:\n    y : Tensor = x\n    return y\n");
  EXPECT_EQ(net.methods[1].name, "other");
  EXPECT_EQ(classes.at("Next").methods.size(), 1U);
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
