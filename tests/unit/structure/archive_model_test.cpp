#include "structure/archive_model.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "base/error.hpp"
#include "temp_dir.hpp"
#include "train/graph/analysis/cross_unit_reads.hpp"
#include "train/model/model_file.hpp"

namespace accel::train {
namespace {

using testing::TempDir;
using testing::write_file;
using torch::jit::Module;

std::string text_of(const ModelStructure& model) {
  std::string text;
  for (const ModuleInfo& module : model.modules) text += module.name + ":" + module.class_name + "\n";
  for (const ParameterInfo& parameter : model.parameters) {
    for (const std::string& fqn : parameter.fqns) text += fqn + " ";
    for (const std::int64_t dim : parameter.shape) text += std::to_string(dim) + "x";
    text += " " + parameter.dtype + (parameter.requires_grad ? " trained" : " frozen") +
            (parameter.cross_unit ? " cross_unit\n" : "\n");
  }
  return text;
}

class ArchiveModelTest : public ::testing::Test {
 protected:
  /// The structure that both readers give. They must agree.
  std::string structure(Module& root, const std::unordered_set<std::string>& units) {
    const std::string path = (dir_ / "net.pt").string();
    root.save(path, {{"accel.json", "{}"}});
    ModelFile file = ModelFile::open(path);
    const std::string expected = text_of(file.structure(cross_unit_reads(file.module(), units)));
    const ArchiveModel archive = ArchiveModel::open(path);
    EXPECT_EQ(archive.accel_json(), "{}");
    EXPECT_EQ(text_of(archive.structure(units)), expected);
    return expected;
  }

  static Module linear(const std::string& class_name) {
    Module module(class_name);
    module.register_parameter("weight", at::ones({2}).set_requires_grad(true), false);
    module.define("def forward(self, x):\n  return x * self.weight\n");
    return module;
  }

  TempDir dir_;
};

TEST_F(ArchiveModelTest, TiesGradDtypesAndOrder) {
  Module inner = linear("Inner");
  Module root("Net");
  root.register_module("b", inner);
  root.register_module("again", inner);  // The same object.
  root.register_parameter("tied", inner.attr("weight").toTensor(), false);
  root.register_parameter("frozen", at::ones({3, 0}, at::kBFloat16), false);
  root.register_parameter("scalar", at::ones({}, at::kLong), false);
  const at::Tensor storage = at::ones({4, 4});
  root.register_parameter("half", storage.narrow(0, 0, 2), false);
  root.register_parameter("other_half", storage.narrow(0, 2, 2).t(), false);
  root.register_parameter("same_half", storage.narrow(0, 0, 2),
                          false);  // Another tensor on the same storage.
  root.register_buffer("mean", at::ones({2}));
  root.register_attribute("plain", c10::TensorType::get(), at::ones({2}));
  root.register_attribute("names", c10::ListType::ofStrings(), c10::List<std::string>({"self.b.weight"}));
  root.define("def forward(self, x):\n  return self.b.forward(x) + self.again.forward(x)\n");
  const std::string text = structure(root, {});
  EXPECT_NE(text.find("tied b.weight again.weight 2x float32 trained"), std::string::npos) << text;
  EXPECT_NE(text.find("frozen 3x0x bfloat16 frozen"), std::string::npos) << text;
  EXPECT_NE(text.find("\nsame_half 2x4x"), std::string::npos) << text;
}

TEST_F(ArchiveModelTest, ReadsPastAUnitsBoundaryAsTheGraphHasThem) {
  Module inner = linear("Inner");
  Module unit("Unit");
  for (const char* name : {"own", "peeked", "in_branch", "in_loop", "joined"})
    unit.register_parameter(name, at::ones({2}).set_requires_grad(true), false);
  unit.register_attribute("maybe", c10::OptionalType::ofTensor(), at::ones({2}));
  // A convolution declares its bias so.
  unit.type()->addAttribute("bias", c10::OptionalType::ofTensor(), /*is_parameter=*/true);
  unit._ivalue()->setAttr("bias", at::ones({2}).set_requires_grad(true));
  unit.register_module("inner", inner);
  unit.register_module("deeper", linear("Deeper"));
  unit.define("def forward(self, x):\n  return self.inner.forward(x) * self.own * self.peeked\n");
  Module other = unit.deepcopy();
  Module root("Root");
  root.register_module("first", unit);
  root.register_module("second", other);
  root.define(R"(
def forward(self, x, flag: bool = True):
  u = self.first
  y = u.forward(x) + u.peeked
  if flag:
    y = y * self.first.in_branch
    v = self.second.joined
  else:
    v = self.second.own
  for i in range(3):
    y = y + self.first.in_loop * v
  m = self.first.maybe
  if m is not None:
    y = y + m
  b = self.first.bias
  if b is not None:
    y = y + b
  return y
def other(self, x):
  return self.second.deeper.forward(x)
)");
  const std::string text = structure(root, {"first", "second"});
  EXPECT_NE(text.find("first.peeked 2x float32 trained cross_unit"), std::string::npos) << text;
  EXPECT_NE(text.find("first.in_branch 2x float32 trained cross_unit"), std::string::npos) << text;
  EXPECT_NE(text.find("first.in_loop 2x float32 trained cross_unit"), std::string::npos) << text;
  EXPECT_NE(text.find("second.joined 2x float32 trained cross_unit"), std::string::npos) << text;
  EXPECT_NE(text.find("second.deeper.weight 2x float32 trained cross_unit"), std::string::npos) << text;
  EXPECT_NE(text.find("first.bias 2x float32 trained cross_unit"), std::string::npos) << text;
  EXPECT_NE(text.find("first.deeper.weight 2x float32 trained\n"), std::string::npos) << text;
  EXPECT_NE(text.find("second.peeked 2x float32 trained\n"), std::string::npos) << text;
  EXPECT_EQ(structure(root, {}).find("cross_unit"), std::string::npos);
  EXPECT_EQ(structure(root, {"first.inner", "second.inner", ""}).find("cross_unit"), std::string::npos);
  // A module of the same class that is not a unit has no boundary.
  const std::string one = structure(root, {"second"});
  EXPECT_NE(one.find("first.peeked 2x float32 trained\n"), std::string::npos) << one;
  EXPECT_NE(one.find("second.joined 2x float32 trained cross_unit"), std::string::npos) << one;
}

TEST_F(ArchiveModelTest, BytesOfBuffers) {
  Module root("Net");
  root.register_parameter("weight", at::ones({2}).set_requires_grad(true), false);
  const at::Tensor table = at::ones({8});
  root.register_buffer("table", table);
  root.register_buffer("part", table.narrow(0, 0, 2));
  root.register_buffer("rope", at::ones({3}, at::kHalf));
  root.define("def forward(self, x):\n  return x\n");
  structure(root, {});
  const ArchiveModel model = ArchiveModel::open(dir_ / "net.pt");
  EXPECT_EQ(model.replicated_bytes(), 32U + 6);
  EXPECT_EQ(model.persistent_bytes({}), 32U + 8 + 6);
  EXPECT_EQ(model.persistent_bytes({"rope"}), 32U + 8);
}

TEST_F(ArchiveModelTest, AFileThatIsNoModelIsAUsageError) {
  write_file(dir_ / "x.pt", std::string(5000, 'x'));
  for (const char* name : {"x.pt", "none.pt"}) {
    try {
      (void)ArchiveModel::open(dir_ / name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find("is not a model file"), std::string::npos) << error.message();
    }
  }
}

}  // namespace
}  // namespace accel::train
