#include "cli/launch/check_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace accel::cli {
namespace {

using config::Origin;
using config::Value;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

CheckReport report_of(Value value, std::optional<Origin> origin = {},
                      std::optional<std::string> written = {}) {
  return {"a.yaml", {{"a.key", std::move(value), std::move(origin), std::move(written)}}, {}, {}};
}

std::string text_of(const CheckReport& report, ShownValues shown = ShownValues::kAll) {
  std::ostringstream stream;
  Results out(stream);
  print_check_text(report, shown, out);
  return stream.str();
}

Json json_of(const CheckReport& report) {
  std::ostringstream stream;
  Results out(stream);
  print_check_json(report, out);
  return Json::parse(stream.str());
}

TEST(CheckReportTest, ATableSaysWhereAValueComesFrom) {
  EXPECT_EQ(text_of(report_of(true)), "a.yaml is valid\n\n  KEY    VALUE  FROM\n  a.key  true   default\n");
  EXPECT_THAT(text_of(report_of(std::int64_t{4}, Origin{Origin::Layer::kFile, "a.yaml", 3, 5}, "-1")),
              HasSubstr("  a.key  4      a.yaml:3:5, written as -1\n"));
  EXPECT_THAT(text_of(report_of(Value(), Origin{Origin::Layer::kEnvironment, "FSDP_VERSION"})),
              HasSubstr("  a.key  null   environment variable FSDP_VERSION\n"));
}

TEST(CheckReportTest, HeadingsComeOnlyWithSomethingBelow) {
  CheckReport report = report_of(true);
  EXPECT_THAT(text_of(report), Not(HasSubstr(":")));
  EXPECT_THAT(text_of(report), StartsWith("a.yaml is valid\n"));
  report.warnings = {"one"};
  EXPECT_THAT(text_of(report), HasSubstr("\nWarnings:\n\n  one\n"));
  EXPECT_THAT(text_of(report), Not(HasSubstr("Settings without effect")));
  report.without_effect = {"two"};
  EXPECT_THAT(text_of(report), HasSubstr("\nSettings without effect:\n\n  two\n"));
}

TEST(CheckReportTest, TheVerdictComesFirst) {
  CheckReport report = report_of(true);
  report.warnings = {"one"};
  EXPECT_THAT(text_of(report), StartsWith("a.yaml is valid, with 1 warning\n"));
  report.without_effect = {"two", "three"};
  EXPECT_THAT(text_of(report), StartsWith("a.yaml is valid, with 1 warning and 2 settings without effect\n"));
  report.warnings = {};
  EXPECT_THAT(text_of(report), StartsWith("a.yaml is valid, with 2 settings without effect\n"));
}

TEST(CheckReportTest, DefaultsAreCounted) {
  CheckReport report = report_of(true);
  EXPECT_EQ(text_of(report, ShownValues::kSet),
            "a.yaml is valid\n\n1 key has its default; --all shows them\n");
  report.values.push_back({"b.key", Value(false), Origin{Origin::Layer::kFlag, "--b"}, {}});
  report.values.push_back({"c.key", Value(false), {}, {}});
  EXPECT_EQ(text_of(report, ShownValues::kSet),
            "a.yaml is valid\n\n  KEY    VALUE  FROM\n  b.key  false  --b\n"
            "\n2 keys have their defaults; --all shows them\n");
}

TEST(CheckReportTest, AValueTakesOneLineAndHidesNothing) {
  EXPECT_THAT(text_of(report_of(std::string("a\nb\x1b[31m"))), HasSubstr("a\\nb\\x1b[31m"));
}

TEST(CheckReportTest, JsonHasValuesOfTheirTypes) {
  const std::pair<Value, Json> rows[] = {
      {Value(), nullptr},
      {true, true},
      {std::int64_t{5}, 5},
      {0.5, 0.5},
      {std::string("text"), "text"},
      {std::vector<std::string>{"a", "b"}, Json::array({"a", "b"})},
      {std::vector<std::string>{}, Json::array()},
      {std::vector<double>{0.5, 1}, Json::array({0.5, 1.0})},
      {config::Texts{{"^a", "b"}}, Json::object({{"^a", "b"}})},
  };
  for (const auto& [value, expected] : rows)
    EXPECT_EQ(json_of(report_of(value))["values"][0]["value"], expected) << config::text_of(value);
}

TEST(CheckReportTest, JsonHasTheSourceOfAValue) {
  const auto value_of = [](std::optional<Origin> origin) {
    return json_of(report_of(true, std::move(origin)))["values"][0].dump();
  };
  EXPECT_EQ(value_of({}), R"({"key":"a.key","value":true,"source":{"kind":"default","where":null}})");
  EXPECT_EQ(value_of(Origin{Origin::Layer::kFlag, "--cpu"}),
            R"({"key":"a.key","value":true,"source":{"kind":"flag","where":"--cpu"}})");
  EXPECT_EQ(value_of(Origin{Origin::Layer::kEnvironment, "ACCELERATE_USE_CPU"}),
            R"({"key":"a.key","value":true,"source":{"kind":"environment","where":"ACCELERATE_USE_CPU"}})");
  EXPECT_EQ(value_of(Origin{Origin::Layer::kFile, "a.yaml", 3, 5}),
            R"({"key":"a.key","value":true,"source":{"kind":"file","where":"a.yaml:3:5"}})");
  EXPECT_EQ(json_of(report_of(true, Origin{Origin::Layer::kFlag, "--cpu"}, "yes"))["values"][0]["written"],
            "yes");
}

TEST(CheckReportTest, JsonIsOneDocument) {
  CheckReport report = report_of(std::string("\xff"));
  report.warnings = {"one"};
  report.without_effect = {"two \xff"};
  const Json document = json_of(report);
  EXPECT_EQ(document["type"], "check");
  EXPECT_EQ(document["values"][0]["value"], "\\xff");
  EXPECT_EQ(document["warnings"], Json::array({"one"}));
  EXPECT_EQ(document["without_effect"], Json::array({"two \\xff"}));
}

}  // namespace
}  // namespace accel::cli
