#include "ckpt/read/name_rules.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

std::string renamed(const std::string& name, const std::vector<Rename>& rules) {
  return Renames(rules).apply(name);
}

TEST(RenamesTest, Parses) {
  EXPECT_EQ(parse_rename("module."
                         "="),
            Rename("module.", ""));
  EXPECT_EQ(parse_rename("a=b=c"), Rename("a", "b=c"));
  for (const char* text : {"", "=", "=x", "abc"}) {
    EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)parse_rename(text); }), HasSubstr("is not FROM=TO"));
  }
}

TEST(RenamesTest, OnceWhereAComponentBegins) {
  EXPECT_EQ(renamed("module.a", {{"module.", ""}}), "a");
  EXPECT_EQ(renamed("x.module.b", {{"module.", ""}}), "x.b");
  EXPECT_EQ(renamed("submodule.c", {{"module.", ""}}), "submodule.c");
  EXPECT_EQ(renamed("module.module.d", {{"module.", ""}}), "module.d");
  EXPECT_EQ(renamed("a.b.c", {{"b.c", "q"}}), "a.q");
  EXPECT_EQ(renamed("a..b", {{"b", "c"}}), "a..c");
  EXPECT_EQ(renamed("a.", {{"b", "c"}}), "a.");
  EXPECT_EQ(renamed("", {{"b", "c"}}), "");
}

TEST(RenamesTest, EachRuleSeesWhatTheOneBeforeGave) {
  EXPECT_EQ(renamed("a", {{"a", "b.x"}, {"b", "c"}, {"x", "y"}}), "c.y");
  EXPECT_EQ(renamed("a", {{"b", "c"}, {"a", "b"}}), "b");
}

TEST(RenamesTest, EveryRuleMustHit) {
  const std::vector<Rename> rules{{"a", "b"}, {"z", "y"}};
  Renames renames(rules);
  EXPECT_EQ(renames.apply("a"), "b");
  EXPECT_EQ(error_of(ErrorKind::kUsage, [&] { renames.check_all_hit(); }), "--rename 'z=y' changes no name");
  EXPECT_EQ(renames.apply("z"), "y");
  EXPECT_NO_THROW(renames.check_all_hit());
}

TEST(GlobsTest, EveryGlobMustHit) {
  const std::vector<std::string> globs{"h.*.w", "[ab]?"};
  Globs some("--include", globs);
  EXPECT_TRUE(some.any("h.0.1.w"));
  EXPECT_FALSE(some.any("xh.0.w"));
  EXPECT_FALSE(some.any("c1"));
  EXPECT_EQ(error_of(ErrorKind::kUsage, [&] { some.check_all_hit(); }),
            "--include '[ab]?' matches no tensor");
  EXPECT_TRUE(some.any("b1"));
  EXPECT_NO_THROW(some.check_all_hit());
  const std::vector<std::string> none;
  EXPECT_FALSE(Globs("--include", none).any("x"));
}

}  // namespace
}  // namespace accel::ckpt
