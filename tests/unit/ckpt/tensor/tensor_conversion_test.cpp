#include "ckpt/tensor/tensor_conversion.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kItem = 4;

// Two experts of shape [2, 3] and their gates, stacked and then concatenated: [2, 4, 3].
constexpr const char* kStacked = R"([{"name": "gate_up", "parts": [
  {"from": "0.gate", "begin": [0, 0], "sizes": [2, 3], "at": [0, 0, 0], "dims": [-1, 0, 1]},
  {"from": "1.gate", "begin": [0, 0], "sizes": [2, 3], "at": [1, 0, 0], "dims": [-1, 0, 1]},
  {"from": "0.up", "begin": [0, 0], "sizes": [2, 3], "at": [0, 2, 0], "dims": [-1, 0, 1]},
  {"from": "1.up", "begin": [0, 0], "sizes": [2, 3], "at": [1, 2, 0], "dims": [-1, 0, 1]}]}])";

/// Tensors of float32 in one file each, whose element i has the value `first + i`.
struct Stored {
  std::vector<Extent> extents;
  std::uint64_t first = 0;
};

Stored whole(std::uint64_t first, const Dims& shape) {
  return {{{"file", first * kItem, Box::whole(shape), row_major_strides(shape)}}, first};
}

/// What the extents give for each element of a tensor of `shape`: the place in the file, in elements.
std::vector<std::int64_t> read(const std::vector<Extent>& extents, const Dims& shape) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(Box::whole(shape).numel()), -1);
  for (const Extent& extent : extents) {
    for (std::int64_t i = 0; i < extent.box.numel(); ++i) {
      Dims position(shape.size());
      std::int64_t rest = i;
      std::int64_t element = static_cast<std::int64_t>(extent.offset / kItem);
      for (std::size_t dim = shape.size(); dim-- > 0;) {
        const std::int64_t within = rest % extent.box.sizes[dim];
        rest /= extent.box.sizes[dim];
        position[dim] = extent.box.offsets[dim] + within;
        element += within * extent.strides[dim];
      }
      values.at(static_cast<std::size_t>(flat_index(shape, position))) = element;
    }
  }
  return values;
}

std::vector<Extent> converted(const TensorConversion& conversion,
                              const std::map<std::string, Stored>& stored) {
  std::vector<Extent> extents;
  for (const TensorPart& part : conversion.parts) {
    for (Extent& extent : extents_in_target(part, stored.at(part.from).extents, kItem))
      extents.push_back(std::move(extent));
  }
  return extents;
}

TEST(TensorConversionTest, ExpertsAreStackedAndConcatenated) {
  const TensorConversion conversion = parse_conversions(kStacked).at(0);
  EXPECT_EQ(shape_of(conversion.parts), (Dims{2, 4, 3}));
  EXPECT_THAT(conversion.sources(), ElementsAre("0.gate", "0.up", "1.gate", "1.up"));
  const std::map<std::string, Stored> stored = {{"0.gate", whole(0, {2, 3})},
                                                {"1.gate", whole(100, {2, 3})},
                                                {"0.up", whole(200, {2, 3})},
                                                {"1.up", whole(300, {2, 3})}};
  EXPECT_THAT(read(converted(conversion, stored), {2, 4, 3}),
              ElementsAre(0, 1, 2, 3, 4, 5, 200, 201, 202, 203, 204, 205,  //
                          100, 101, 102, 103, 104, 105, 300, 301, 302, 303, 304, 305));
}

TEST(TensorConversionTest, ATensorInPiecesStaysOneInItsPlace) {
  // The rows of 1.up are in two files, the second one column by column.
  Stored pieces = {
      {{"a", 300 * kItem, {{0, 0}, {1, 3}}, {3, 1}}, {"b", 400 * kItem, {{1, 0}, {1, 3}}, {1, 10}}}, 0};
  const TensorPart part = parse_conversions(kStacked).at(0).parts.at(3);
  const std::vector<Extent> extents = extents_in_target(part, pieces.extents, kItem);
  ASSERT_EQ(extents.size(), 2U);
  EXPECT_EQ(extents[1].file, "b");
  EXPECT_EQ(extents[1].box, (Box{{1, 3, 0}, {1, 1, 3}}));
  const std::vector<std::int64_t> values = read(extents, {2, 4, 3});
  EXPECT_THAT(std::vector(values.begin() + 18, values.end()), ElementsAre(300, 301, 302, 400, 410, 420));
}

TEST(TensorConversionTest, PartsOfOneTensorAreCutOutAndTransposed) {
  const std::vector<TensorConversion> conversions = parse_conversions(R"([
    {"name": "q", "parts": [{"from": "qk", "begin": [0, 0], "sizes": [2, 3], "at": [0, 0], "dims": [1, 0]}]},
    {"name": "k", "parts": [{"from": "qk", "begin": [2, 0], "sizes": [1, 3], "at": [0], "dims": [1]}]}])");
  const std::map<std::string, Stored> stored = {{"qk", whole(10, {3, 3})}};
  EXPECT_THAT(read(converted(conversions[0], stored), {3, 2}), ElementsAre(10, 13, 11, 14, 12, 15));
  EXPECT_THAT(read(converted(conversions[1], stored), {3}), ElementsAre(16, 17, 18));

  // The way back puts them together again.
  const std::vector<TensorConversion> back = inverse(conversions);
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].name, "qk");
  EXPECT_EQ(shape_of(back[0].parts), (Dims{3, 3}));
  const std::map<std::string, Stored> cut = {{"q", whole(0, {3, 2})}, {"k", whole(50, {3})}};
  EXPECT_THAT(read(converted(back[0], cut), {3, 3}), ElementsAre(0, 2, 4, 1, 3, 5, 50, 51, 52));
}

TEST(TensorConversionTest, TheInverseOfTheInverseIsTheConversion) {
  const std::vector<TensorConversion> conversions = parse_conversions(kStacked);
  const std::vector<TensorConversion> back = inverse(conversions);
  ASSERT_EQ(back.size(), 4U);
  EXPECT_EQ(back[0].name, "0.gate");
  EXPECT_THAT(back[0].parts.at(0).dims, ElementsAre(1, 2));
  EXPECT_EQ(inverse(back), conversions);
  const std::vector<TensorConversion> renames = parse_conversions(R"([{"name": "a", "from": "b"}])");
  EXPECT_EQ(inverse(renames).at(0).from, "a");
  EXPECT_EQ(inverse(inverse(renames)), renames);
  EXPECT_THAT(parse_conversions(""), IsEmpty());
}

TEST(TensorConversionTest, ChangedListsAreReadOrRefused) {
  const std::string list = kStacked;
  for (std::size_t i = 0; i < list.size(); ++i) {
    testing::expect_ok_or_error([&] { (void)parse_conversions(list.substr(0, i)); });
    for (const char* changed : {"", "9", "-1", "9223372036854775807", "[", "null", "0.5"}) {
      std::string text = list;
      text.replace(i, 1, changed);
      testing::expect_ok_or_error([&] { (void)inverse(parse_conversions(text)); });
    }
  }
}

TEST(TensorConversionTest, WhatIsNotSuchAListIsAUsageError) {
  const std::string part = R"("begin": [0], "sizes": [2], "at": [0], "dims": [0]})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "malformed"},
      {"{}", "not a list"},
      {"[1]", "malformed"},
      {R"([{"name": "a"}])", "malformed"},
      {R"([{"name": "a", "parts": []}])", "it has no parts"},
      {R"([{"name": "a", "from": "b"}, {"name": "a", "from": "c"}])", "it is there twice"},
      {R"([{"name": "a", "parts": [{"from": "b", )" + part + R"(, {"from": "c", )" + part + "]}]", "overlap"},
      {R"([{"name": "a", "parts": [{"from": "b", "begin": [0], "sizes": [2], "at": [1], "dims": [0]}]}])",
       "cover"},
      {R"([{"name": "a", "parts": [{"from": "b", "begin": [-1], "sizes": [2], "at": [0], "dims": [0]}]}])",
       "a number is negative"},
      {R"([{"name": "a", "parts": [{"from": "b", "begin": [0], "sizes": [2], "at": [0], "dims": [1]}]}])",
       "'dims' names dimension 1 of 'b' wrongly"},
      {R"([{"name": "a", "parts": [{"from": "b", "begin": [0], "sizes": [2], "at": [0], "dims": [-1]}]}])",
       "'dims' lacks dimension 0 of 'b'"},
      {R"([{"name": "a", "parts": [{"from": "b", "begin": [0], "sizes": [2, 1], "at": [0], "dims": [0]}]}])",
       "differ in length"},
      {R"([{"name": "a", "parts": [{"from": "b", "begin": [0.5], "sizes": [2], "at": [0], "dims": [0]}]}])",
       "'begin' has 0.5, which is not an integer"},
      {R"([{"name": "a", "parts": [{"from": "b", "begin": [0], "sizes": [2], "at": [0], "dims": [4294967296]}]}])",
       "'dims' has 4294967296, which is not an integer"},
      // Names do not tell whether such a tensor is transposed already.
      {R"([{"name": "a", "parts": [{"from": "a", "begin": [0, 0], "sizes": [2, 2], "at": [0, 0], "dims": [1, 0]}]}])",
       "do not tell which of the two a checkpoint has"},
      {R"([{"name": "a", "from": "b"}, {"name": "b", "from": "a"}])",
       "do not tell which of the two a checkpoint has"},
  };
  for (const auto& wrong : cases)
    EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)parse_conversions(wrong.first); }),
                HasSubstr(wrong.second))
        << wrong.first;
}

}  // namespace
}  // namespace accel::ckpt
