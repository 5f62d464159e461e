#include "ckpt/torch/state_walk.hpp"

#include <gmock/gmock.h>

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
using ::testing::IsEmpty;

struct Found {
  std::vector<std::string> tensors;
  std::vector<StatePath> paths;  // The paths of the tensors.
  std::vector<std::string> objects;
};

Found walk(const Value& root) {
  Found found;
  StateVisitor visitor;
  visitor.tensor = [&](const StatePath& path, const TorchTensor&, const Value&) {
    found.tensors.push_back(fqn_of(path));
    found.paths.push_back(path);
  };
  visitor.object = [&](const StatePath& path, const Value&) { found.objects.push_back(fqn_of(path)); };
  walk_state(root, visitor);
  return found;
}

const Value kTensor = pickle_of_tensor(DType::kFloat32, {2}, "0");

TEST(StateWalkTest, EntersWhatDcpEnters) {
  const Value root = Dict{{{"model", Dict{{{"w", kTensor}, {7, kTensor}}}},
                           {"groups", List{{Dict{{{"lr", 0.5}, {"betas", Tuple{{1, 2}}}}}}}},
                           {"names", List{{"a", "b"}}},
                           {"nested", List{{List{{1}}, List{{kTensor}}}}},
                           {"empty", Dict{}},
                           {"step", 3}}};
  const Found found = walk(root);
  EXPECT_THAT(found.tensors, ElementsAre("model.w", "model.7", "nested.1.0"));
  EXPECT_THAT(found.objects, ElementsAre("groups.0.lr", "groups.0.betas", "names", "nested.0", "step"));
}

TEST(StateWalkTest, TellsDictsWithIntegerKeysFromLists) {
  std::vector<std::string> dicts;
  std::vector<std::string> objects;
  StateVisitor visitor;
  visitor.tensor = [](const StatePath&, const TorchTensor&, const Value&) {};
  visitor.object = [&](const StatePath& path, const Value&) { objects.push_back(fqn_of(path)); };
  visitor.integer_keys = [&](const StatePath& path) { dicts.push_back(fqn_of(path)); };
  const Value entry = Dict{{{0, kTensor}}};
  walk_state(Dict{{{"state", entry}, {"list", List{{entry, kTensor}}}, {"names", Dict{{{"w", kTensor}}}}}},
             visitor);
  EXPECT_THAT(dicts, ElementsAre("state", "list.0"));
  // An optimizer that keeps nothing has an empty state, and no other empty dict counts.
  walk_state(Dict{{{"state", Dict{}}, {"else", Dict{}}}}, visitor);
  EXPECT_THAT(objects, ElementsAre("state"));
}

TEST(StateWalkTest, NoTensorIsLostInOtherContainers) {
  const Value instance = pickle::instance(Global("my", "Holder"), Dict{{{"weight", kTensor}, {"n", 1}}});
  const Value call = pickle::reduce(Global("my", "make"), {1, kTensor});
  const Value odd_keys = Dict{{{Tuple{{1, 2}}, kTensor}}};
  const Found found =
      walk(Dict{{{"pair", Tuple{{kTensor, "x"}}}, {"held", instance}, {"made", call}, {"odd", odd_keys}}});
  EXPECT_THAT(found.tensors, ElementsAre("pair.0", "held.weight", "made.1", "odd.(1, 2)"));
}

TEST(StateWalkTest, WhatHoldsNoTensorIsOneObject) {
  const Value instance = pickle::instance(Global("my", "Config"), Dict{{{"n", 1}}});
  const Found found =
      walk(Dict{{{"config", instance}, {"odd", Dict{{{Tuple{{1, 2}}, 3}}}}, {"pair", Tuple{{1, 2}}}}});
  EXPECT_THAT(found.tensors, IsEmpty());
  EXPECT_THAT(found.objects, ElementsAre("config", "odd", "pair"));
}

TEST(StateWalkTest, AWholeModuleGivesItsStateDict) {
  const auto module = [](const Dict& parameters, const Dict& buffers, const Dict& modules) {
    return pickle::instance(Global("my", "Net"), Dict{{{"training", true},
                                                       {"_parameters", parameters},
                                                       {"_buffers", buffers},
                                                       {"_modules", modules},
                                                       {"other", kTensor}}});
  };
  const Value inner =
      module(Dict{{{"weight", kTensor}, {"bias", pickle::None{}}}}, Dict{{{"mean", kTensor}}}, {});
  const Value outer = module(Dict{{{"scale", kTensor}}}, {}, Dict{{{"fc", inner}, {"after", inner}}});
  // A name is one key, as in a state dict. If it were a key for each module, modules called `model` or
  // `scaler` would be taken for parts of a checkpoint.
  EXPECT_THAT(walk(outer).paths, ElementsAre(StatePath{"scale"}, StatePath{"fc.weight"}, StatePath{"fc.mean"},
                                             StatePath{"after.weight"}, StatePath{"after.mean"}));
  EXPECT_THAT(
      walk(Dict{{{"model", Dict{{{"net", inner}}}}, {"w", kTensor}}}).paths,
      ElementsAre(StatePath{"model", "net", "weight"}, StatePath{"model", "net", "mean"}, StatePath{"w"}));
}

TEST(StateWalkTest, ErrorsNameThePlace) {
  const Value broken = testing::view_of("0", 1, 0, {5}, {1});
  EXPECT_THAT(error_of(ErrorKind::kCorrupt,
                       [&] {
                         (void)walk(Dict{{{"a", Dict{{{"b", broken}}}}}});
                       }),
              HasSubstr("'a.b'"));
  const Value flat = pickle::instance(Global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"),
                                      Tuple{{List{{kTensor}}}});
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [&] {
                         (void)walk(Dict{{{"_flat_param", flat}}});
                       }),
              HasSubstr("'_flat_param': a ShardedTensor"));
}

TEST(StateWalkTest, KeysOfOtherTypesHaveTheNamesThatDcpGives) {
  const Value root = Dict{{{Tuple{{"a", 1}}, kTensor},
                           {Tuple{{"it's"}}, kTensor},
                           {Tuple{{"a\n'\"", Tuple{}}}, kTensor},
                           {Value(true), kTensor},
                           {pickle::None{}, kTensor}}};
  EXPECT_THAT(walk(root).tensors,
              ElementsAre("('a', 1)", "(\"it's\",)", "('a\\n\\'\"', ())", "True", "None"));
}

TEST(StateWalkTest, AKeyWithoutANameIsRefused) {
  const Value root = Dict{{{kTensor, kTensor}}};
  EXPECT_THAT(error_of(ErrorKind::kFailure, [&] { (void)walk(root); }), HasSubstr("which has no name"));
}

}  // namespace
}  // namespace accel::ckpt
