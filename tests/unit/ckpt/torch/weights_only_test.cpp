#include "ckpt/torch/weights_only.hpp"

#include <gtest/gtest.h>

namespace accel::ckpt {
namespace {

using pickle::Global;
using pickle::ObjectParts;
using pickle::Value;
using pickle::Values;

Value object(ObjectParts::Form form, Global callable, Values args, Values states = {}, Values items = {}) {
  ObjectParts parts;
  parts.form = form;
  parts.callable = std::move(callable);
  parts.args = std::move(args);
  parts.states = std::move(states);
  parts.items = std::move(items);
  return pickle::Object(std::move(parts));
}

TEST(WeightsOnlyTest, TakesPlainValuesAndTheAllowList) {
  const Value plain[] = {
      Value(),
      true,
      1,
      0.5,
      "text",
      pickle::BigInt{"123456789"},
      pickle::Bytes{"ab"},
      pickle::Tuple{{Value(1), Value("a")}},
      pickle::List{{Value(pickle::Dict{{{Value("k"), Value(1)}}})}},
      pickle::Set{{Value(1)}, false},
      Global("torch", "bfloat16"),
      pickle::reduce(Global("torch", "device"), {Value("cpu")}),
      pickle::reduce(Global("torch", "Size"), {Value(pickle::Tuple{{Value(1)}})}),
      object(ObjectParts::Form::kReduce, Global("collections", "OrderedDict"), {}, {Value(pickle::Dict{})}),
  };
  for (const Value& value : plain) EXPECT_EQ(unsafe_part(value), "") << pickle::describe(value);
}

TEST(WeightsOnlyTest, NamesWhatItRefusesWhereverItIs) {
  const Value bad = pickle::reduce(Global("os", "system"), {Value("true")});
  const Value holders[] = {
      bad,
      pickle::Tuple{{Value(1), bad}},
      pickle::List{{bad}},
      pickle::Set{{bad}, false},
      pickle::Dict{{{Value("k"), bad}}},
      pickle::Dict{{{bad, Value("v")}}},
      pickle::reduce(Global("torch", "device"), {bad}),
      object(ObjectParts::Form::kReduce, Global("collections", "OrderedDict"), {}, {bad}),
      Global("os", "system"),
  };
  for (const Value& value : holders) EXPECT_EQ(unsafe_part(value), "os.system") << pickle::describe(value);
}

TEST(WeightsOnlyTest, RefusesTensorsFrozenSetsAndStateOfOtherClasses) {
  EXPECT_EQ(unsafe_part(pickle::List{{Value(pickle::Persistent{{Value("x")}})}}), "a tensor");
  EXPECT_EQ(unsafe_part(pickle::Set{{}, true}), "frozenset");
  EXPECT_EQ(unsafe_part(object(ObjectParts::Form::kNew, Global("torch", "Size"), {}, {Value(1)})),
            "torch.Size");
  EXPECT_EQ(unsafe_part(
                object(ObjectParts::Form::kReduce, Global("collections", "OrderedDict"), {}, {}, {Value(1)})),
            "collections.OrderedDict");
}

}  // namespace
}  // namespace accel::ckpt
