#include "train/model/model_file.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <filesystem>
#include <string>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel::train {
namespace {

using testing::TempDir;
using testing::write_file;
using torch::jit::Module;

at::Tensor read(const ModelFile& file, std::size_t index, std::int64_t begin, std::int64_t count) {
  at::Tensor out = at::empty({count}, file.parameters()[index].options().requires_grad(false));
  file.read_parameter(index, begin, {static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()});
  return out;
}

struct Saved {
  TempDir dir;
  at::Tensor weight = at::randn({5, 7});
  at::Tensor transposed = at::randn({4, 6}).t();
  at::Tensor running = at::randn({3});

  Saved() {
    Module layer("Layer");
    layer.register_parameter("weight", weight, false);
    layer.register_buffer("running", running);
    layer.define("def forward(self, x):\n  return x\n");
    Module root("Net");
    root.register_module("a", layer);
    root.register_parameter("tied", weight, false);
    root.register_parameter("transposed", transposed, false);
    root.register_parameter("frozen", at::ones({2}).set_requires_grad(false), false);
    root.register_attribute("extra", c10::ListType::ofTensors(), c10::List<at::Tensor>({running + 1}));
    root.define("def forward(self, x):\n  return x\n");
    for (const char* name : {"tied", "transposed"}) root.attr(name).toTensor().set_requires_grad(true);
    torch::jit::ExtraFilesMap extra = {{"accel.json", "{}"}};
    root.save((dir / "net.pt").string(), extra);
  }
};

TEST(ModelFileTest, KnowsTheStructureAndTiesAndGrad) {
  const Saved saved;
  const ModelFile file = ModelFile::open(saved.dir / "net.pt");
  const ModelStructure structure = file.structure({});
  ASSERT_EQ(structure.modules.size(), 2u);
  EXPECT_EQ(structure.modules[0].class_name, "Net");
  EXPECT_EQ(structure.modules[1].name, "a");
  EXPECT_EQ(structure.modules[1].class_name, "Layer");
  ASSERT_EQ(structure.parameters.size(), 3u);
  EXPECT_EQ(structure.parameters[0].fqns, (std::vector<std::string>{"tied", "a.weight"}));
  EXPECT_EQ(structure.parameters[0].shape, (std::vector<std::int64_t>{5, 7}));
  EXPECT_EQ(structure.parameters[0].dtype, "float32");
  EXPECT_TRUE(structure.parameters[0].requires_grad);
  EXPECT_FALSE(structure.parameters[2].requires_grad);
  EXPECT_EQ(file.accel_json(), "{}");
}

TEST(ModelFileTest, ReadsRangesOfParameters) {
  const Saved saved;
  const ModelFile file = ModelFile::open(saved.dir / "net.pt");
  EXPECT_TRUE(at::equal(read(file, 0, 0, 35), saved.weight.reshape({-1})));
  EXPECT_TRUE(at::equal(read(file, 0, 9, 4), saved.weight.reshape({-1}).narrow(0, 9, 4)));
}

TEST(ModelFileTest, ReadsParametersWithStridesInRowMajorOrder) {
  const Saved saved;
  const ModelFile file = ModelFile::open(saved.dir / "net.pt");
  ASSERT_FALSE(file.parameters()[1].is_contiguous());
  EXPECT_TRUE(at::equal(read(file, 1, 3, 10), saved.transposed.reshape({-1}).narrow(0, 3, 10)));
}

/// Tensor parallelism asks for columns row by row. Later bytes of the file would be others.
TEST(ModelFileTest, ReadsAStorageWithStridesOnce) {
  const Saved saved;
  const ModelFile file = ModelFile::open(saved.dir / "net.pt");
  (void)read(file, 1, 0, 2);
  write_file(saved.dir / "net.pt", std::string(std::filesystem::file_size(saved.dir / "net.pt"), '\0'));
  EXPECT_TRUE(at::equal(read(file, 1, 3, 10), saved.transposed.reshape({-1}).narrow(0, 3, 10)));
  EXPECT_FALSE(at::equal(read(file, 0, 0, 35), saved.weight.reshape({-1})));
  EXPECT_FALSE(at::equal(read(file, 1, 3, 10), saved.transposed.reshape({-1}).narrow(0, 3, 10)));
}

TEST(ModelFileTest, BuffersAndOtherTensorsAreThere) {
  const Saved saved;
  ModelFile file = ModelFile::open(saved.dir / "net.pt");
  EXPECT_TRUE(at::equal(file.module().attr("a").toModule().attr("running").toTensor(), saved.running));
  EXPECT_TRUE(at::equal(file.module().attr("extra").toTensorVector()[0], saved.running + 1));
}

TEST(ModelFileTest, ItsOutlineIsAllButTheValues) {
  const Saved saved;
  const ModelFile file = ModelFile::open(saved.dir / "net.pt");
  const std::vector<std::byte> bytes = file.outline().to_bytes();
  ModelFile other = ModelFile::from_outline(ModelOutline::from_bytes(bytes));
  const ModelStructure structure = other.structure({});
  const ModelStructure expected = file.structure({});
  ASSERT_EQ(structure.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
    EXPECT_EQ(structure.parameters[i].fqns, expected.parameters[i].fqns);
    EXPECT_EQ(structure.parameters[i].shape, expected.parameters[i].shape);
    EXPECT_EQ(structure.parameters[i].requires_grad, expected.parameters[i].requires_grad);
    EXPECT_EQ(other.parameters()[i].strides(), file.parameters()[i].strides());
  }
  EXPECT_EQ(other.accel_json(), "{}");
  EXPECT_FALSE(other.parameter_without_values());
  EXPECT_TRUE(at::equal(other.module().attr("a").toModule().attr("running").toTensor(), saved.running));
  EXPECT_TRUE(at::equal(other.module().attr("extra").toTensorVector()[0], saved.running + 1));
  try {
    (void)read(other, 0, 0, 35);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("only the outline"), std::string::npos) << error.message();
  }
}

TEST(ModelFileTest, AFileThatIsNoModelIsAUsageError) {
  const TempDir dir;
  write_file(dir / "x.pt", std::string(5000, 'x'));
  try {
    (void)ModelFile::open(dir / "x.pt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("is not a model file"), std::string::npos) << error.message();
  }
  EXPECT_THROW((void)ModelFile::open(dir / "none.pt"), Error);
}

}  // namespace
}  // namespace accel::train
