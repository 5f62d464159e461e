#include "structure/compiled_layers.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace accel {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The description of two layers that share their code, as accel-export writes it.
const json kDescription = json::parse(R"({
  "version": 3, "torch": "2.11.0", "device": "cpu", "instruction_set": "x86-64-v3", "dtype": "float32",
  "autocast": "bfloat16",
  "packages": [{
    "class": "Block",
    "takes": [{"own": "norm.weight", "dtype": "float32", "shape": [8], "gradient": true},
              {"input": 0, "dtype": "float32", "shape": ["s0", "s1", 8], "gradient": true},
              {"input": 1, "dtype": "bool", "shape": ["s0*s1"], "gradient": false}],
    "outputs": 2,
    "backward_takes": ["taken0", "taken1", "result2", "gradient0"],
    "output_gradients": [{"output": 1, "dtype": "float32", "shape": ["s0", "s1", 8], "order": [0, 2, 1]}],
    "gradients": [0, 1],
    "bytes": {"forward": 400000, "backward": 500000}}],
  "units": {"blocks.0": {"package": 0, "inputs": ["x", "mask"]}, "blocks.1": {"package": 0, "inputs": ["y", "mask"]}}
})");

TEST(CompiledLayersTest, IsReadAsItWasWritten) {
  const CompiledLayers layers = parse_compiled_layers(kDescription.dump());
  EXPECT_EQ(layers.torch, "2.11.0");
  EXPECT_EQ(layers.dtype, "float32");
  EXPECT_EQ(layers.autocast, "bfloat16");
  ASSERT_EQ(layers.packages.size(), 1U);
  const CompiledPackage& package = layers.packages[0];
  EXPECT_EQ(package.takes[0].own, "norm.weight");
  EXPECT_EQ(package.takes[2].input, 1U);
  EXPECT_EQ(std::get<std::int64_t>(package.takes[1].shape[2]), 8);
  EXPECT_EQ(std::get<std::string>(package.takes[1].shape[1]), "s1");
  EXPECT_EQ(package.backward_takes[2].kind, BackwardInput::Kind::kResult);
  EXPECT_EQ(package.backward_takes[3].kind, BackwardInput::Kind::kGradient);
  EXPECT_EQ(package.output_gradients[0].output, 1U);
  EXPECT_EQ(package.output_gradients[0].dtype, "float32");
  EXPECT_EQ(std::get<std::int64_t>(package.output_gradients[0].shape[2]), 8);
  EXPECT_THAT(package.output_gradients[0].order, ElementsAre(0, 2, 1));
  EXPECT_THAT(layers.layers.at("blocks.1").inputs, ElementsAre("y", "mask"));
  EXPECT_EQ(record_of_code(0, true), "compiled/0_backward.so");
}

TEST(CompiledLayersTest, TheSummarySaysWhatTheCodeIsFor) {
  EXPECT_EQ(parse_compiled_layers(kDescription.dump()).summary(),
            "2 layers of Block (900 kB, torch 2.11.0, x86-64-v3, float32 under autocast to bfloat16)");
}

TEST(CompiledLayersTest, AnotherVersionIsAUsageError) {
  json changed = kDescription;
  changed["version"] = 4;
  try {
    (void)parse_compiled_layers(changed.dump());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("version 4"));
  }
}

struct Damage {
  const char* where;
  json value;
};

class DamagedLayersTest : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedLayersTest, WhatContradictsItselfIsCorrupt) {
  json changed = kDescription;
  changed[json::json_pointer(GetParam().where)] = GetParam().value;
  try {
    (void)parse_compiled_layers(changed.dump());
    FAIL() << GetParam().where;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.message();
    EXPECT_THAT(error.message(), HasSubstr("compiled.json"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, DamagedLayersTest,
    ::testing::Values(
        Damage{"/packages/0/gradients/0", 3}, Damage{"/packages/0/gradients/0", -1},
        Damage{"/packages/0/backward_takes/0", "taken3"}, Damage{"/packages/0/backward_takes/0", "gradient1"},
        Damage{"/packages/0/backward_takes/0", "result"},
        Damage{"/packages/0/backward_takes/0", "result12345678901234567890"},
        Damage{"/packages/0/backward_takes/0", "input0"}, Damage{"/packages/0/output_gradients/0/output", 2},
        Damage{"/packages/0/output_gradients/1", kDescription["packages"][0]["output_gradients"][0]},
        Damage{"/packages/0/output_gradients/0/shape", json::array({"s0", 8})},
        Damage{"/packages/0/output_gradients/0/order", json::array({0, 2, 2})},
        Damage{"/packages/0/output_gradients/0/order", json::array({0, 1, 3})},
        Damage{"/packages/0/takes/0/shape/0", -8}, Damage{"/packages/0/takes/0", json::object()},
        Damage{"/packages/0/takes/1/input", 2}, Damage{"/packages/0/bytes/forward", std::uint64_t{1} << 40},
        Damage{"/units/blocks.0/package", 1}, Damage{"/units/blocks.0/inputs", json::array({"x"})},
        Damage{"/units/blocks.0", "x"}, Damage{"/torch", 2}));

}  // namespace
}  // namespace accel
