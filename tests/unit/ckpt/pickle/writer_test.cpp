#include "ckpt/pickle/writer.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ckpt/pickle/reader.hpp"
#include "helpers.hpp"

namespace accel::ckpt::pickle {
namespace {

using namespace std::string_literals;
using ckpt::testing::bytes_of;

Value any_value(int depth);

Values any_values(int depth) {
  Values values;
  const auto count = *rc::gen::inRange(0, 4);
  for (int i = 0; i < count; ++i) values.push_back(any_value(depth));
  return values;
}

Pairs any_pairs(int depth) {
  Pairs pairs;
  for (Value& key : any_values(0)) pairs.emplace_back(std::move(key), any_value(depth));
  return pairs;
}

Value any_value(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 14 : 7)) {
    case 0:
      return None{};
    case 1:
      return *rc::gen::arbitrary<bool>();
    case 2:
      return *rc::gen::arbitrary<std::int64_t>();
    case 3:
      return std::int64_t{*rc::gen::inRange(-70000, 70000)};
    case 4:
      return *rc::gen::arbitrary<double>();
    case 5:
      return *rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127));  // Any ASCII: it is UTF-8.
    case 6:
      return Bytes{*rc::gen::container<std::string>(rc::gen::arbitrary<char>())};
    case 7:
      return Tuple{any_values(depth - 1)};
    case 8:
      return List{any_values(depth - 1)};
    case 9:
      return Set{any_values(0), *rc::gen::arbitrary<bool>()};
    case 10:
      return Dict{any_pairs(depth - 1)};
    case 11:
      return Global("some.module", "Name");
    case 12:
      return Persistent{{any_value(depth - 1)}};
    default: {
      ObjectParts parts;
      parts.form = *rc::gen::arbitrary<bool>() ? ObjectParts::Form::kNew : ObjectParts::Form::kReduce;
      parts.callable = Global("a", "B");
      parts.args = any_values(depth - 1);
      parts.states = any_values(depth - 1);
      parts.items = any_values(depth - 1);
      parts.pairs = any_pairs(depth - 1);
      return Object(std::move(parts));
    }
  }
}

RC_GTEST_PROP(PickleWriterPropertyTest, WhatIsWrittenIsRead, ()) {
  const Value value = any_value(3);
  RC_ASSERT(same(parse(bytes_of(write(value))), value));
}

RC_GTEST_PROP(PickleWriterPropertyTest, PiecesAreReadAsTheWholeIs, ()) {
  const Pairs pairs = any_pairs(2);
  const Values values = any_values(2);
  Writer writer;
  writer.begin_dict();
  writer.put("pairs");
  writer.begin_dict();
  for (const auto& [key, value] : pairs) {
    writer.put(key);
    writer.put(value);
  }
  writer.end_dict();
  writer.put("instance");
  writer.begin_instance(Global("a.module", "Class"));
  writer.begin_list();
  for (const Value& value : values) writer.put(value);
  writer.end_list();
  writer.end_instance();
  writer.end_dict();
  const Value whole =
      Dict{{{"pairs", Dict{pairs}}, {"instance", instance(Global("a.module", "Class"), List{values})}}};
  RC_ASSERT(same(parse(bytes_of(writer.finish())), whole));
}

TEST(PickleWriterTest, UsesTheOpcodesOfTorchSave) {
  EXPECT_EQ(
      write(Dict{{{"lr", 0.5}, {"n", 3}}}),
      "\x80\x02}(X\x02\x00\x00\x00lrq\x00G?\xe0\x00\x00\x00\x00\x00\x00X\x01\x00\x00\x00nq\x01K\x03u."s);
}

TEST(PickleWriterTest, IntegersTakeTheirShortestForm) {
  EXPECT_EQ(write(255), "\x80\x02K\xff."s);
  EXPECT_EQ(write(256), "\x80\x02M\x00\x01."s);
  EXPECT_EQ(write(65536), "\x80\x02J\x00\x00\x01\x00."s);
  EXPECT_EQ(write(-1), "\x80\x02J\xff\xff\xff\xff."s);
  EXPECT_EQ(write(std::int64_t{1} << 31), "\x80\x02\x8a\x05\x00\x00\x00\x80\x00."s);
  EXPECT_EQ(write(std::int64_t{1} << 40), "\x80\x02\x8a\x06\x00\x00\x00\x00\x00\x01."s);
  EXPECT_EQ(write(-(std::int64_t{1} << 39)), "\x80\x02\x8a\x05\x00\x00\x00\x00\x80."s);
  EXPECT_EQ(write(INT64_MIN), "\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s);
}

TEST(PickleWriterTest, RepeatedStringsAreReferredTo) {
  EXPECT_EQ(write(Tuple{{"ab", "ab"}}),
            "\x80\x02X\x02\x00\x00\x00"
            "abq\x00h\x00\x86."s);
}

TEST(PickleWriterTest, ManyStringsUseTheLongMemo) {
  Values items;
  for (int i = 0; i < 300; ++i) items.emplace_back(std::to_string(i));
  items.emplace_back("299");
  const Value list = List{items};
  const std::string pickle = write(list);
  EXPECT_NE(pickle.find("j\x2b\x01\x00\x00"s), std::string::npos);
  EXPECT_TRUE(same(parse(bytes_of(pickle)), list));
}

TEST(PickleWriterTest, RefusesWhatNoReaderWouldTake) {
  Value deep = List{};
  for (int i = 0; i < 300; ++i) deep = List{{deep}};
  EXPECT_THROW((void)write(deep), Error);
}

TEST(PickleWriterTest, RefusesStringsThatPythonWouldNotRead) {
  for (const char* text :
       {"q\xff\xfeq", "\x80", "caf\xe9", "\xc0\xaf", "\xe0\x80\xaf", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    SCOPED_TRACE(text);
    const std::string message = ckpt::testing::error_of(ErrorKind::kFailure, [&] {
      (void)write(Dict{{{"name", Value(text)}}});
    });
    EXPECT_NE(message.find("not UTF-8"), std::string::npos) << message;
  }
  // Python's pickle reads a lone surrogate.
  for (const char* text : {"", "caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "q\xed\xa0\x80q"}) {
    EXPECT_NO_THROW((void)write(Value(text))) << text;
  }
}

}  // namespace
}  // namespace accel::ckpt::pickle
