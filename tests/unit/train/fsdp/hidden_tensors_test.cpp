#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "base/error.hpp"
#include "temp_dir.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {
namespace {

using testing::TempDir;
using torch::jit::Module;

std::string error_of(const Module& module) {
  const TempDir dir;
  module.save((dir / "net.pt").string());
  try {
    ModelFile::open(dir / "net.pt");
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST(HiddenTensorsTest, AModelThatComputesWhileItIsLoadedIsRefused) {
  Module scale("Scale");
  scale.register_buffer("values", at::ones({3}));
  scale.register_attribute("training", c10::BoolType::get(), true);
  scale.define(
      "def __getstate__(self):\n  return (self.values, self.training)\n"
      "def __setstate__(self, state: Tuple[Tensor, bool]):\n"
      "  self.values = state[0] * 2\n  self.training = state[1]\n"
      "def forward(self, x):\n  return x * self.values\n");
  Module root("Net");
  root.register_module("scale", scale);
  root.define("def forward(self, x):\n  return self.scale.forward(x)\n");
  const std::string error = error_of(root);
  EXPECT_NE(error.find("module 'scale' of class Scale has a __setstate__"), std::string::npos) << error;
}

TEST(HiddenTensorsTest, ABufferThatIsADetachedParameterHasItsValues) {
  const TempDir dir;
  Module root("Net");
  const at::Tensor weight = at::arange(4, at::kFloat).set_requires_grad(true);
  root.register_parameter("weight", weight, false);
  root.register_buffer("start", weight.detach());
  root.register_attribute("tail", c10::ListType::ofTensors(),
                          c10::List<at::Tensor>({weight.detach().slice(0, 2)}));
  root.define("def forward(self, x):\n  return x * self.weight + self.start + self.tail[0].sum()\n");
  root.save((dir / "net.pt").string());
  const auto expect = [](ModelFile& file) {
    EXPECT_TRUE(file.module().attr("start").toTensor().equal(at::arange(4, at::kFloat)));
    EXPECT_TRUE(
        at::Tensor(file.module().attr("tail").toTensorList().get(0)).equal(at::arange(2, 4, at::kFloat)));
  };
  ModelFile file = ModelFile::open(dir / "net.pt");
  expect(file);
  ModelFile elsewhere = ModelFile::from_outline(file.outline());
  expect(elsewhere);
}

}  // namespace
}  // namespace accel::train
