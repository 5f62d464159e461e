#include "ckpt/torchscript/reads.hpp"

#include <gmock/gmock.h>

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Path = AttributePath;

std::vector<AttributePath> reads_of(const std::string& body) {
  return attribute_reads(
      "  def forward(s: __torch__.Net,\n    x: Tensor,\n    flag: bool=True) -> Tensor:\n" + body);
}

TEST(ScriptReadsTest, ChainsThatStartAtTheFirstArgument) {
  EXPECT_THAT(reads_of("    return torch.mul(x, s.unit.weight)\n"),
              ElementsAre(Path{"unit"}, Path{"unit", "weight"}));
  EXPECT_THAT(reads_of("    return torch.mul(x.weight, y.s.weight)\n"), IsEmpty());
}

TEST(ScriptReadsTest, ThroughVariablesAndNamesThatAreNumbers) {
  EXPECT_THAT(
      reads_of("    us = s.us\n    _0 = getattr(us, \"0\")\n    w = _0.w\n    return getattr(s.b, \"1\")\n"),
      ElementsAre(Path{"us"}, Path{"us", "0"}, Path{"us", "0", "w"}, Path{"b"}, Path{"b", "1"}));
}

TEST(ScriptReadsTest, ACallReadsOnlyWhatItIsCalledOn) {
  EXPECT_THAT(reads_of("    return ((s.a).forward(x, )).s.b\n"), ElementsAre(Path{"a"}));
  EXPECT_THAT(reads_of("    _0 = (s.a).forward((s.b).forward(x, ), )\n    return _0.c\n"),
              ElementsAre(Path{"a"}, Path{"b"}));
}

TEST(ScriptReadsTest, WhatABranchOrALoopSetsIsUnknownBehindIt) {
  EXPECT_THAT(reads_of("    if flag:\n      u = s.a\n      v = u.p\n    else:\n      u = s.b\n    w = u.q\n"),
              ElementsAre(Path{"a"}, Path{"a", "p"}, Path{"b"}));
  EXPECT_THAT(reads_of("    u = s.a\n    for i in range(2):\n      w = u.q\n"),
              ElementsAre(Path{"a"}, Path{"a", "q"}));
}

TEST(ScriptReadsTest, AVariableSetAnewIsSomethingElse) {
  EXPECT_THAT(reads_of("    u = s.a\n    u = torch.add(x, 1)\n    w = u.q\n"), ElementsAre(Path{"a"}));
  EXPECT_THAT(reads_of("    u = s.a\n    u, v, = torch.split(x)\n    w = u.q\n"), ElementsAre(Path{"a"}));
  EXPECT_THAT(reads_of("    u = s.a\n    for u in range(2):\n      w = u.q\n"), ElementsAre(Path{"a"}));
}

TEST(ScriptReadsTest, TextAndNumbersAndArgumentNamesAreNoReads) {
  EXPECT_THAT(reads_of("    a = f(\"s.unit.w \\\" s.v\", 1.s, 1e-5, s=None)  # s.w\n"), IsEmpty());
  EXPECT_THAT(reads_of("    raise Exception(\"s.unit\")\n"), IsEmpty());
}

TEST(ScriptReadsTest, SurvivesAnything) {
  EXPECT_THAT(attribute_reads(""), IsEmpty());
  EXPECT_THAT(attribute_reads("def f("), IsEmpty());
  EXPECT_THAT(attribute_reads("def f():\n"), IsEmpty());
  EXPECT_THAT(reads_of("    \"open\n    getattr(s,\n    getattr(s, \"a\"\n    s.\n    = s\n    (((s)\n  \n"),
              IsEmpty());
  std::string brackets(200'000, '(');
  brackets += "s.a\n";
  EXPECT_THAT(reads_of(brackets), ElementsAre(Path{"a"}));
  std::string steps = "    u = s\n";
  for (int i = 0; i < 10'000; ++i) steps += "    u = u.a\n";
  EXPECT_EQ(reads_of(steps).size(), 200U);
}

}  // namespace
}  // namespace accel::ckpt
