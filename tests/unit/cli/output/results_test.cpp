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

TEST(ResultsTest, AVerdictIsColouredOnlyIfAskedFor) {
  std::ostringstream out;
  Results results(out);
  results.verdict("a\n: ", "ok", Tone::kGood, ", b");
  EXPECT_EQ(out.str(), "a\\n: ok, b\n");
  out.str("");
  results.use_colors();
  results.verdict("", "o\x1bk", Tone::kBad);
  EXPECT_EQ(out.str(), "\x1b[1;31mo\\x1bk\x1b[m\n");
}

TEST(ResultsTest, ATableIsAsWideAsWhatIsShown) {
  EXPECT_EQ(table_of({{"NAME", "N"}, {"a\nb", "1"}, {"c", "22"}}, {"N"}),
            (std::vector<std::string>{"  NAME   N", "  a\\nb   1", "  c     22"}));
}

TEST(ResultsTest, ATableCountsCharactersAndNotBytes) {
  EXPECT_EQ(table_of({{"NAME", "N"}, {"\u00e4\u00f6", "1"}, {"abc", "2"}}, {"N"}),
            (std::vector<std::string>{"  NAME  N", "  \u00e4\u00f6    1", "  abc   2"}));
}

TEST(ResultsTest, ANameIsCutInTheMiddle) {
  EXPECT_EQ(cut_in_the_middle("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(cut_in_the_middle("abcdefghij", 9), "abc...hij");
  EXPECT_EQ(cut_in_the_middle("abcdefghij", 8), "abc...ij");
  EXPECT_EQ(cut_in_the_middle("\u00e4\u00f6\u00fc\u00e4\u00f6\u00fc", 5), "\u00e4...\u00fc");
}

TEST(ResultsTest, ATableIsNoWiderThanTheTerminal) {
  const std::string name = "model.layers.17.self_attn.q_proj.weight";
  const std::vector<std::vector<std::string>> rows{
      {"NAME", "N", "IN"}, {name, "1234567890123", "a.bin"}, {"b", "1", "b.bin"}};
  std::ostringstream out;
  Results(out, 40).table(rows, {"N"});
  EXPECT_EQ(out.str(),
            "  NAME                          N  IN\n"
            "  model.l...weight  1234567890123  a.bin\n"
            "  b                             1  b.bin\n");
  // A name keeps twelve characters, and a number all.
  EXPECT_EQ(table_of(rows, {"N"}, 5)[1], "  model...ight  1234567890123  a.bin");
  EXPECT_EQ(table_of(rows, {"N"}, 1000), table_of(rows, {"N"}));
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
