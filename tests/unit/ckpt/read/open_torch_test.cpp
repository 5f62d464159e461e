#include <gmock/gmock.h>

#include "ckpt/read/openers.hpp"
#include "opened.hpp"
#include "torch_files.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::Global;
using pickle::List;
using pickle::Tuple;
using pickle::Value;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::object_names;
using testing::read_tensor;
using testing::TempDir;
using testing::tensor_names;
using testing::view_of;
using testing::write_file;
using testing::write_torch_file;

// Six float32 numbers.
const std::string kNumbers = testing::pattern(24, 1);

std::string elements(std::initializer_list<std::size_t> indices) {
  std::string bytes;
  for (const std::size_t i : indices) bytes += kNumbers.substr(4 * i, 4);
  return bytes;
}

TEST(OpenTorchTest, ViewsOfAllSorts) {
  const TempDir dir;
  const Value root = Dict{{{"m", Dict{{{"dense", view_of("0", 6, 0, {2, 3}, {3, 1})},
                                       {"transposed", view_of("0", 6, 0, {3, 2}, {1, 3})},
                                       {"part", view_of("0", 6, 1, {2, 2}, {3, 1})},
                                       {"expanded", view_of("0", 6, 4, {3, 2}, {0, 1})},
                                       {"scalar", view_of("0", 6, 5, {}, {})},
                                       {"none", view_of("0", 6, 6, {0, 4}, {4, 1})}}}},
                           {"lr", 0.5}}};
  write_torch_file(dir / "m.bin", root, {kNumbers});
  const auto checkpoint = open_torch(dir / "m.bin");
  EXPECT_EQ(checkpoint->kind(), Kind::kTorch);
  EXPECT_EQ(read_tensor(*checkpoint, "m.dense"), kNumbers);
  EXPECT_EQ(read_tensor(*checkpoint, "m.transposed"), elements({0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(read_tensor(*checkpoint, "m.part"), elements({1, 2, 4, 5}));
  EXPECT_EQ(read_tensor(*checkpoint, "m.expanded"), elements({4, 5, 4, 5, 4, 5}));
  EXPECT_EQ(read_tensor(*checkpoint, "m.scalar"), elements({5}));
  EXPECT_EQ(read_tensor(*checkpoint, "m.none"), "");
  EXPECT_EQ(checkpoint->tensors()[0].path, (StatePath{"m", "dense"}));
  EXPECT_THAT(object_names(*checkpoint), ElementsAre("lr"));
  EXPECT_EQ(*checkpoint->read_object(0).get<double>(), 0.5);
}

// As DeepSpeed writes them: a parameter of ZeRO 3 is empty in the file of the model, which has its size
// beside it.
TEST(OpenTorchTest, PartsOfZeroAreNoTensors) {
  const TempDir dir;
  const auto size = [](int rows) {
    return pickle::reduce(Global("torch", "Size"), {Value(Tuple{{rows, 2}})});
  };
  const Value empty = view_of("0", 6, 0, {0}, {1});
  write_torch_file(dir / "model.pt",
                   Dict{{{"module", Dict{{{"w", empty}, {"none", empty}, {"other", empty}}}},
                         {"param_shapes", List{{Dict{{{"w", size(3)}, {"none", size(0)}}}}}}}},
                   {kNumbers});
  const auto model = open_torch(dir / "model.pt");
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)read_tensor(*model, "module.w"); }),
              HasSubstr("tensor 'module.w' is empty here, since DeepSpeed's ZeRO 3 has its elements"));
  EXPECT_EQ(read_tensor(*model, "module.none"), "");
  EXPECT_EQ(read_tensor(*model, "module.other"), "");
  write_torch_file(
      dir / "optimizer.pt",
      Dict{{{"optimizer_state_dict", Dict{{{"zero_stage", 1}, {"fp32", view_of("0", 6, 0, {6}, {1})}}}}}},
      {kNumbers});
  const auto optimizer = open_torch(dir / "optimizer.pt");
  EXPECT_THAT(
      error_of(ErrorKind::kFailure, [&] { (void)read_tensor(*optimizer, "optimizer_state_dict.fp32"); }),
      HasSubstr("in a file of one rank of DeepSpeed's ZeRO (zero_to_fp32.py"));
}

TEST(OpenTorchTest, ATensorAlone) {
  const TempDir dir;
  write_torch_file(dir / "t.pt", view_of("0", 6, 0, {6}, {1}), {kNumbers});
  EXPECT_EQ(read_tensor(*open_torch(dir / "t.pt"), "tensor"), kNumbers);
}

TEST(OpenTorchTest, WhatCannotBeReadIsListedAndRefused) {
  const TempDir dir;
  Value flipped = view_of("0", 6, 0, {6}, {1});
  pickle::ObjectParts parts = **flipped.get<pickle::Object>();
  parts.args.emplace_back(Dict{{{"conj", true}}});
  flipped = pickle::Object(std::move(parts));
  write_torch_file(dir / "m.bin", Dict{{{"w", flipped}, {"v", view_of("0", 6, 0, {6}, {1})}}}, {kNumbers});
  const auto checkpoint = open_torch(dir / "m.bin");
  EXPECT_THAT(tensor_names(*checkpoint), ElementsAre("w", "v"));
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)checkpoint->locate(0); }),
              HasSubstr("tensor 'w' is a lazily conjugated or negated view"));
  EXPECT_EQ(read_tensor(*checkpoint, "v"), kNumbers);
}

TEST(OpenTorchTest, RejectsWhatDoesNotFit) {
  const TempDir dir;
  const auto rejection = [&](ErrorKind kind, const Value& root) {
    std::filesystem::remove(dir / "m.bin");
    write_torch_file(dir / "m.bin", root, {kNumbers});
    return error_of(kind, [&] { (void)open_torch(dir / "m.bin"); });
  };
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, Dict{{{"w", view_of("0", 7, 0, {7}, {1})}}}),
              HasSubstr("tensor 'w': record 'data/0' has 24 bytes, its pickle says 28"));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, Dict{{{"w", view_of("9", 6, 0, {6}, {1})}}}),
              HasSubstr("'data/9'"));
  const Value tensor = view_of("0", 6, 0, {6}, {1});
  EXPECT_THAT(rejection(ErrorKind::kFailure, Dict{{{"a.b", tensor}, {"a", Dict{{{"b", tensor}}}}}}),
              HasSubstr("two entries that are called 'a.b'"));
  write_file(dir / "x.bin", "no archive at all, but long enough to be looked at");
  (void)error_of(ErrorKind::kCorrupt, [&] { (void)open_torch(dir / "x.bin"); });
}

TEST(OpenShardedTorchTest, FilesWithAnIndex) {
  const TempDir dir;
  write_torch_file(dir / "m-1.bin", Dict{{{"a", view_of("0", 6, 0, {6}, {1})}}}, {kNumbers});
  write_torch_file(dir / "m-2.bin", Dict{{{"b", view_of("0", 6, 5, {1}, {1})}}}, {kNumbers});
  const auto index = [&](const std::string& map) {
    write_file(dir / "pytorch_model.bin.index.json", R"({"weight_map": {)" + map + "}}");
    return open_sharded_torch(dir.path());
  };
  const auto checkpoint = index(R"("a": "m-1.bin", "b": "m-2.bin")");
  EXPECT_EQ(checkpoint->kind(), Kind::kTorchSharded);
  EXPECT_EQ(read_tensor(*checkpoint, "a"), kNumbers);
  EXPECT_EQ(read_tensor(*checkpoint, "b"), elements({5}));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)index(R"("a": "m-1.bin", "b": "m-1.bin")"); }),
              HasSubstr("'b' is in 'm-1.bin', which has no such tensor"));
  (void)error_of(ErrorKind::kMissing, [&] { (void)index(R"("a": "m-3.bin")"); });
  write_file(dir / "x.bin.index.json", "{}");
  (void)error_of(ErrorKind::kUsage, [&] { (void)open_sharded_torch(dir.path()); });
}

}  // namespace
}  // namespace accel::ckpt
