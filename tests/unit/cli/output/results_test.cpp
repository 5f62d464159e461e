#include "cli/output/results.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "cli/output/table.hpp"

namespace accel::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& document) {
  std::ostringstream out;
  Results(out).json(document);
  return out.str();
}

TEST(ResultsTest, ALineStaysOneLine) {
  std::ostringstream out;
  Results results(out);
  results.line("name\nforged\x1b[31m");
  results.lines({"a", ""});
  EXPECT_EQ(out.str(), "name\\nforged\\x1b[31m\na\n\n");
}

TEST(ResultsTest, ATableIsAsWideAsWhatIsShown) {
  EXPECT_EQ(table_of({{"NAME", "N"}, {"a\nb", "1"}, {"c", "22"}}, {"N"}),
            (std::vector<std::string>{"  NAME   N", "  a\\nb   1", "  c     22"}));
}

TEST(ResultsTest, ADocumentIsWrittenAsTheLibraryWouldIndentIt) {
  const Json document{
      {"a", {1, 2.5, true, nullptr}}, {"b", Json::object()}, {"c", {{"d", Json::array()}, {"e", "x"}}}};
  EXPECT_EQ(text_of(document), document.dump(2) + "\n");
  EXPECT_EQ(text_of("text"), "\"text\"\n");
}

TEST(ResultsTest, ADocumentIsUtf8WithTheSameValue) {
  const Json document{{"k\x7f", "\xc2\x9b\x1b\n"}};
  EXPECT_EQ(text_of(document), "{\n  \"k\\u007f\": \"\\u009b\\u001b\\n\"\n}\n");
  EXPECT_EQ(Json::parse(text_of(document)), document);
  EXPECT_EQ(text_of("a\xff"), "\"a\\\\xff\"\n");
}

TEST(ResultsTest, ASignalAndAFullDiskEndTheOutput) {
  std::ostringstream out;
  Results results(out);
  out.setstate(std::ios::badbit);
  EXPECT_THROW(results.line("a"), Error);
  out.clear();
  const InterruptGuard guard;
  ::raise(SIGTERM);
  EXPECT_THROW(results.line("a"), Error);
}

}  // namespace
}  // namespace accel::cli
