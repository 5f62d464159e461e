#include "ckpt/convert/objects_json.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;
using testing::error_of;

json json_of(const std::vector<OutputObject>& objects) { return json::parse(to_json(objects)); }

TEST(PickleJsonTest, NestsByPath) {
  const std::int64_t zero = 0;
  const std::int64_t one = 1;
  EXPECT_EQ(
      json_of({{{"groups", one, "lr"}, 0.5},
               {{"groups", zero, "lr"}, 0.25},
               {{"groups", zero, "params"}, pickle::List{{"a.w", "b.w"}}},
               {{"name.with.dots"}, true}}),
      json::parse(
          R"({"groups": [{"lr": 0.25, "params": ["a.w", "b.w"]}, {"lr": 0.5}], "name.with.dots": true})"));
}

TEST(PickleJsonTest, KeepsValues) {
  EXPECT_EQ(
      json_of({{{"none"}, pickle::None{}},
               {{"int"}, std::int64_t{-9007199254740993}},
               {{"tuple"}, pickle::Tuple{{0.9, 0.999}}},
               {{"dict"}, pickle::Dict{{{"k", 1}, {2, "v"}}}}}),
      json::parse(
          R"({"none": null, "int": -9007199254740993, "tuple": [0.9, 0.999], "dict": {"k": 1, "2": "v"}})"));
}

TEST(PickleJsonTest, WhatJsonLacksIsNoWrongNumber) {
  EXPECT_EQ(json_of({{{"a"}, INFINITY}, {{"b"}, -INFINITY}, {{"c"}, NAN}}),
            json::parse(R"({"a": "inf", "b": "-inf", "c": "nan"})"));
  EXPECT_TRUE(json_of({{{"o"}, pickle::reduce(pickle::Global("torch", "Size"), {})}})["o"].is_string());
}

TEST(PickleJsonTest, RejectsContradictions) {
  (void)error_of(ErrorKind::kFailure, [] { (void)to_json({{{"a"}, 1}, {{"a", "b"}, 2}}); });
  (void)error_of(ErrorKind::kFailure, [] { (void)to_json({{{"a", std::int64_t{1}}, 1}}); });
}

}  // namespace
}  // namespace accel::ckpt
