#include "ckpt/torchscript/modules.hpp"

#include <gmock/gmock.h>

#include "opened.hpp"
#include "torch_files.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::Global;
using pickle::Value;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::view_of;
using testing::write_zip;

class ScriptModulesTest : public ::testing::Test {
 protected:
  ScriptModules read(const Value& root, const std::string& code) {
    return read_bytes(pickle::write(root), code);
  }
  ScriptModules read_bytes(const std::string& data, const std::string& code) {
    write_zip(dir_ / "m.pt", {{"m/data.pkl", data}, {"m/code/__torch__.py", code}});
    const File file = File::open_read(dir_ / "m.pt");
    return read_script_modules(TorchFile(FileWindow(file, 0, file.size())));
  }
  static Value module(const char* name, const Dict& attributes) {
    return pickle::instance(Global("__torch__", name), attributes);
  }

  TempDir dir_;
  const Value tensor_ = view_of("0", 6, 0, {6}, {1});
  const std::string code_ =
      "class Net(Module):\n  __parameters__ = [\"scale\", ]\n  __buffers__ = [\"mean\", ]\n"
      "  scale : Tensor\n  mean : Tensor\n  plain : Tensor\n  a : __torch__.Inner\n"
      "  __annotations__[\"0\"] = __torch__.Inner\n"
      "  def forward(self: __torch__.Net) -> Tensor:\n    return self.scale\n"
      "class Inner(Module):\n  __parameters__ = []\n  __buffers__ = []\n";
};

TEST_F(ScriptModulesTest, HasModulesAndTensorsWithoutReadingStorages) {
  const ScriptModules model = read(module("Net", Dict{{{"scale", tensor_},
                                                       {"mean", tensor_},
                                                       {"plain", tensor_},
                                                       {"none", pickle::None{}},
                                                       {"training", true},
                                                       {"a", module("Inner", {})},
                                                       {"0", module("Inner", {})}}}),
                                   code_);
  ASSERT_EQ(model.modules.size(), 3U);
  const ScriptModule& root = model.modules[0];
  EXPECT_EQ(root.type, "__torch__.Net");
  EXPECT_EQ(root.class_name(), "Net");
  EXPECT_EQ(root.code->types.at("0"), "__torch__.Inner");
  ASSERT_EQ(root.code->methods.size(), 1U);
  EXPECT_THAT(root.code->methods[0].source, HasSubstr("return self.scale"));
  ASSERT_NE(root.find("scale"), nullptr);
  EXPECT_TRUE(root.is_parameter(*root.find("scale")));
  EXPECT_FALSE(root.is_buffer(*root.find("scale")));
  EXPECT_TRUE(root.is_buffer(*root.find("mean")));
  EXPECT_FALSE(root.is_buffer(*root.find("plain")));
  EXPECT_EQ(root.find("plain")->kind, ScriptAttribute::Kind::kTensor);
  EXPECT_EQ(root.find("none")->kind, ScriptAttribute::Kind::kOther);
  EXPECT_EQ(root.find("gone"), nullptr);
  EXPECT_EQ(model.tensors[0].shape, (Dims{6}));

  std::vector<std::string> paths;
  for_each_module(model, [&](const std::string& path, const ScriptModule& m) {
    paths.push_back(path + ":" + std::string(m.class_name()));
  });
  EXPECT_THAT(paths, ElementsAre(":Net", "a:Inner", "0:Inner"));
}

TEST_F(ScriptModulesTest, ObjectsOfCppClassesHaveNoCode) {
  const Value packed = pickle::instance(Global("__torch__.torch.classes.quantized", "Packed"), 1);
  const ScriptModules model = read(module("Net", Dict{{{"packed", packed}}}), code_);
  EXPECT_EQ(model.modules[0].find("packed")->kind, ScriptAttribute::Kind::kOther);
}

TEST_F(ScriptModulesTest, AWrongTensorIsNamed) {
  const Value wrong = view_of("0", 6, 3, {6}, {1});
  const Value root = module("Net", Dict{{{"scale", wrong}}});
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read(root, code_); }), HasSubstr("tensor 'scale'"));
}

// One module within another, as pickle opcodes; the innermost attribute is `last`.
std::string nested_modules(int count, const std::string& last) {
  using namespace std::string_literals;
  std::string pickle = "\x80\x02";
  for (int i = 0; i < count; ++i) pickle += "c__torch__\nInner\n)\x81q\x01}(X\1\0\0\0m"s;
  pickle += last;
  for (int i = 0; i < count; ++i) pickle += "ub";
  return pickle + ".";
}

TEST_F(ScriptModulesTest, ModulesNestedTooDeepAreRefused) {
  EXPECT_EQ(read_bytes(nested_modules(100, "N"), code_).modules.size(), 100U);
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)read_bytes(nested_modules(300, "N"), code_); }),
              HasSubstr("nest too deep"));
}

TEST_F(ScriptModulesTest, AModuleThatContainsItselfIsOneObjectAndHasNoEndOfNames) {
  const ScriptModules model = read_bytes(nested_modules(1, "h\x01"), code_);
  EXPECT_EQ(model.modules.size(), 1U);
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [&] { for_each_module(model, [](const std::string&, const ScriptModule&) {}); }),
              HasSubstr("contain themselves"));
}

}  // namespace
}  // namespace accel::ckpt
