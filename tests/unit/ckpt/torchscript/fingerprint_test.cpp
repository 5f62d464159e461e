#include "ckpt/torchscript/fingerprint.hpp"

#include <gtest/gtest.h>

#include "torch_files.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::Global;
using pickle::Value;
using testing::TempDir;
using testing::view_of;
using testing::write_zip;

/// What an archive is made of.
struct Archive {
  std::string path = "Net";
  std::string code = "class Net(Module):\n  def forward(self, x):\n    return torch.dropout(x, 0.1)\n";
  double scale = 2;
  bool training = true;
  std::string weights = "abcd";
  std::string constant = "1234";
  std::string more = "";  ///< The code of another file.
};

std::uint32_t fingerprint(const Archive& archive) {
  const TempDir dir;
  const Value inner = pickle::instance(Global("__torch__", "Inner"), Dict{{{"name", std::string("x")}}});
  const Value net = pickle::instance(Global("__torch__." + archive.path, "Net"),
                                     Dict{{{"weight", view_of("0", 1, 0, {1}, {1})},
                                           {"training", archive.training},
                                           {"scale", archive.scale},
                                           {"a", inner},
                                           {"b", inner}}});
  write_zip(dir / "m.pt", {{"m/data.pkl", pickle::write(net)},
                           {"m/code/__torch__/" + archive.path + ".py", archive.code},
                           {"m/code/__torch__/" + archive.path + ".py.debug_pkl", archive.weights},
                           {"m/data/0", archive.weights},
                           {"m/code/__torch__/" + archive.path + "/___torch_mangle_3.py", archive.more},
                           {"m/constants/0", archive.constant}});
  const File file = File::open_read(dir / "m.pt");
  FileSource source(file);
  return graph_fingerprint(source);
}

TEST(FingerprintTest, WhatIsComputedCountsAndWeightsDoNot) {
  const std::uint32_t own = fingerprint({});
  EXPECT_EQ(fingerprint({.training = false}), own);
  EXPECT_EQ(fingerprint({.weights = "dcba"}), own);
  EXPECT_NE(fingerprint({.scale = 2.5}), own);
  EXPECT_NE(fingerprint({.constant = "1235"}), own);
  Archive other;
  other.code.replace(other.code.find("0.1"), 3, "0.5");
  EXPECT_NE(fingerprint(other), own);
}

TEST(FingerprintTest, TheNumberOfAnExportInAProcessDoesNotCount) {
  const auto with_mangle = [](const std::string& number) {
    Archive archive;
    archive.path = "___torch_mangle_" + number;
    archive.code = "class Net(Module):\n  a : __torch__.___torch_mangle_" + number + ".Block\n";
    return fingerprint(archive);
  };
  EXPECT_EQ(with_mangle("1"), with_mangle("27"));
  EXPECT_EQ(fingerprint({.path = "gpt.___torch_mangle_5"}), fingerprint({.path = "gpt"}));
}

// A process that has exported another Net before puts this one into a file of its own.
TEST(FingerprintTest, TheFileOfAClassDoesNotCount) {
  const std::string block = "class Block(Module):\n  def forward(self, x):\n    return x\n";
  const std::string net = "class Net(Module):\n  block : __torch__.Block\n";
  const std::uint32_t own = fingerprint({.code = block + net});
  EXPECT_EQ(fingerprint({.code = net + block}), own);
  EXPECT_EQ(fingerprint({.code = block, .more = net}), own);
  EXPECT_NE(fingerprint({.code = block + block, .more = net}), own);
}

TEST(FingerprintTest, TheNumbersOfVariablesDoNotCount) {
  const auto with_body = [](const std::string& body) {
    return fingerprint({.code = "class Net(Module):\n  weight1 : Tensor\n  def forward(self, x):\n" + body});
  };
  const std::uint32_t own =
      with_body("    _0 = torch.relu(x)\n    x0 = torch.add(_0, x)\n    return torch.sub(x0, _0)\n");
  EXPECT_EQ(with_body("    _7 = torch.relu(x)\n    x12 = torch.add(_7, x)\n    return torch.sub(x12, _7)\n"),
            own);
  EXPECT_NE(with_body("    _0 = torch.relu(x)\n    x0 = torch.add(_0, x)\n    return torch.sub(_0, x0)\n"),
            own);
  EXPECT_NE(with_body("    _0 = torch.relu(x)\n    x0 = torch.add(x, x)\n    return torch.sub(x0, _0)\n"),
            own);
  EXPECT_NE(with_body("    _0 = torch.relu6(x)\n    x0 = torch.add(_0, x)\n    return torch.sub(x0, _0)\n"),
            own);
  // Numbers and texts do, and so do attributes.
  const std::uint32_t text = with_body("    return torch.format(\"a \\\" x1\", 0.5, self.conv1)\n");
  EXPECT_NE(with_body("    return torch.format(\"a \\\" x2\", 0.5, self.conv1)\n"), text);
  EXPECT_NE(with_body("    return torch.format(\"a \\\" x1\", 0.6, self.conv1)\n"), text);
  EXPECT_NE(with_body("    return torch.format(\"a \\\" x1\", 0.5, self.conv2)\n"), text);
  EXPECT_NE(fingerprint({.code = "class Net(Module):\n  weight1 : Tensor\n"}),
            fingerprint({.code = "class Net(Module):\n  weight2 : Tensor\n"}));
}

TEST(FingerprintTest, TheOrderOfConstantsInAClassDoesNotCount) {
  const std::string first = "  in_features : Final[int] = 4\n";
  const std::string second = "  out_features : Final[int] = 8\n";
  const auto with = [](const std::string& constants) {
    Archive archive;
    archive.code =
        "class Net(Module):\n  bias : Tensor\n" + constants + "  def forward(self, x):\n    return x\n";
    return fingerprint(archive);
  };
  EXPECT_EQ(with(first + second), with(second + first));
  EXPECT_NE(with(first + second), with(first + "  out_features : Final[int] = 9\n"));
  // Constants of one class are not those of another.
  const std::string other = "class Other(Module):\n";
  EXPECT_NE(with(first + other + second), with(second + other + first));
}

}  // namespace
}  // namespace accel::ckpt
