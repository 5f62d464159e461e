#include "base/files/json_text.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "temp_dir.hpp"

namespace accel {
namespace {

std::string repeated(std::string_view text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

TEST(JsonTextTest, WhatIsParsedIsTheDocument) {
  const std::string text = R"({"a": ["b,\"[{", 1], "c": {}})";
  EXPECT_EQ(parse_json(text), nlohmann::json::parse(text));
  EXPECT_TRUE(parse_json_or_discard("{\"a\": ").is_discarded());
  EXPECT_THROW((void)parse_json("{\"a\": "), nlohmann::json::exception);
  EXPECT_TRUE(parse_json_or_discard("\"\\").is_discarded());
  EXPECT_TRUE(parse_json_or_discard("").is_discarded());
}

TEST(JsonTextTest, WhatTheParserPassesOverIsNotJson) {
  using namespace std::string_literals;
  for (const std::string& text : {"{}\0"s, "{}\0garbage"s, "\0{}"s, "{\"a\0\": 1}"s, "\xef\xbb\xbf{}"s}) {
    EXPECT_TRUE(parse_json_or_discard(text).is_discarded());
    EXPECT_THROW((void)parse_json(text), Error);
  }
  EXPECT_EQ(parse_json(R"("a\u0000b")"), "a\0b"s);
}

TEST(JsonTextTest, TheNeedIsComputedBeforehand) {
  EXPECT_NO_THROW(check_json_bytes("[" + repeated("0,", 1'000'000) + "0]"));
  EXPECT_NO_THROW(check_json_bytes("\"" + repeated("[],", 10'000'000) + "\""));
  EXPECT_THROW(check_json_bytes("[" + repeated("[],", 10'000'000) + "0]"), Error);
  EXPECT_THROW((void)parse_json("[" + repeated("{},", 10'000'000) + "0]"), Error);
}

TEST(JsonTextTest, WhatNestsTooDeepIsNotParsed) {
  const auto nested = [](std::size_t depth) { return repeated("[", depth) + repeated("]", depth); };
  EXPECT_NO_THROW((void)parse_json(nested(1000)));
  EXPECT_THROW((void)parse_json(nested(1001)), Error);
  EXPECT_THROW((void)parse_json_or_discard(repeated("[", 1'000'000)), Error);
}

TEST(JsonTextTest, ASignalEndsAParse) {
  const InterruptGuard guard;
  ::raise(SIGTERM);
  EXPECT_THROW((void)parse_json("[" + repeated("0,", 100'000) + "0]"), Error);
}

}  // namespace
}  // namespace accel
