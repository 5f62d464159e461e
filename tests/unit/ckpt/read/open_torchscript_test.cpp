#include <gmock/gmock.h>

#include "ckpt/read/openers.hpp"
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
using testing::pattern;
using testing::read_tensor;
using testing::TempDir;
using testing::tensor_names;
using testing::view_of;
using testing::write_zip;

class OpenTorchscriptTest : public ::testing::Test {
 protected:
  std::unique_ptr<Checkpoint> open(const Value& root, const std::string& code) {
    write_zip(dir_ / "m.pt", {{"m/data.pkl", pickle::write(root)},
                              {"m/code/__torch__.py", code},
                              {"m/code/__torch__/nn.py",
                               "class Linear(Module):\n  __parameters__ = [\"weight\", ]\n"
                               "  __buffers__ = []\n"},
                              {"m/constants.pkl", pickle::write(pickle::Tuple{})},
                              {"m/data/0", numbers_}});
    return open_torchscript(dir_ / "m.pt");
  }
  static Value module(const char* package, const char* name, const Dict& attributes) {
    return pickle::instance(Global(package, name), attributes);
  }

  TempDir dir_;
  const std::string numbers_ = pattern(24, 3);
  const Value tensor_ = view_of("0", 6, 0, {6}, {1});
};

TEST_F(OpenTorchscriptTest, GivesWhatStateDictGives) {
  const Value inner = module("__torch__.nn", "Linear", Dict{{{"weight", tensor_}, {"bias", pickle::None{}}}});
  const Value config = module("__torch__", "Config", Dict{{{"table", tensor_}}});
  const Value root = module("__torch__", "Net",
                            Dict{{{"steps", view_of("0", 6, 5, {}, {})},
                                  {"plain", tensor_},
                                  {"scale", tensor_},
                                  {"training", true},
                                  {"fc", inner},
                                  {"config", config}}});
  const auto checkpoint = open(root,
                               "class Config:\n  table : Tensor\nclass Net(Module):\n"
                               "  __parameters__ = [\"scale\", ]\n  __buffers__ = [\"steps\", ]\n");
  EXPECT_EQ(checkpoint->kind(), Kind::kTorchScript);
  EXPECT_THAT(tensor_names(*checkpoint), ElementsAre("scale", "steps", "fc.weight"));
  EXPECT_EQ(checkpoint->tensors()[2].path, (StatePath{"fc.weight"}));
  EXPECT_EQ(read_tensor(*checkpoint, "fc.weight"), numbers_);
  EXPECT_EQ(read_tensor(*checkpoint, "steps"), numbers_.substr(20));
}

TEST_F(OpenTorchscriptTest, WithoutAListEveryOtherTensorIsABuffer) {
  const Value root = module("__torch__", "Net", Dict{{{"a", tensor_}, {"b", tensor_}}});
  EXPECT_THAT(tensor_names(*open(root, "class Net(Module):\n  __parameters__ = [\"b\", ]\n")),
              ElementsAre("b", "a"));
}

TEST_F(OpenTorchscriptTest, RejectsWhatIsNoModule) {
  const std::string code = "class Net(Module):\n  __parameters__ = []\nclass Plain:\n  x : int\n";
  const auto rejection = [&](const Value& root) {
    return error_of(ErrorKind::kCorrupt, [&] { (void)open(root, code); });
  };
  EXPECT_THAT(rejection(7), HasSubstr("does not hold a module"));
  EXPECT_THAT(rejection(module("__torch__", "Plain", {})), HasSubstr("does not hold a module"));
  EXPECT_THAT(rejection(module("__torch__", "Other", {})), HasSubstr("no class __torch__.Other"));
  EXPECT_THAT(rejection(module("__torch__.gone", "Net", {})), HasSubstr("'code/__torch__/gone.py'"));
  EXPECT_THAT(rejection(pickle::instance(Global("__torch__", "Net"), 3)), HasSubstr("without attributes"));
}

}  // namespace
}  // namespace accel::ckpt
