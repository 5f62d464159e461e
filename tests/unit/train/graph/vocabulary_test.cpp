#include "train/graph/analysis/vocabulary.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

namespace accel::train {
namespace {

using torch::jit::Module;

/// A module whose forward is `body`, with two tables of 7 and 5 rows. One of them is in a submodule that
/// looks up its argument.
Module with_tables(const std::string& body) {
  Module inner("Inner");
  inner.register_parameter("weight", at::ones({7, 2}), false);
  inner.define("def forward(self, ids):\n  return torch.embedding(self.weight, ids)\n");
  Module root("Root");
  root.register_module("inner", inner);
  root.register_parameter("small", at::ones({5, 2}), false);
  root.define("def forward(self, ids, other):\n" + body);
  return root;
}

std::optional<std::int64_t> vocabulary(const std::string& body, std::size_t input = 0) {
  return vocabulary_of(with_tables(body), input);
}

TEST(VocabularyTest, IsTheRowsOfTheTableThatTheTokensIndex) {
  EXPECT_EQ(vocabulary("  return torch.embedding(self.small, ids)\n"), 5);
  EXPECT_EQ(vocabulary("  return self.inner.forward(ids)\n"), 7);
  EXPECT_EQ(vocabulary("  return self.small[ids]\n"), 5);
  EXPECT_EQ(vocabulary("  return torch.index_select(self.small, 0, ids.view(-1))\n"), 5);
}

TEST(VocabularyTest, ViewsOfTheTokensAreTokens) {
  EXPECT_EQ(vocabulary("  return self.inner.forward(ids.view(-1).contiguous()[:])\n"), 7);
  EXPECT_EQ(
      vocabulary("  if ids.dim() == 1:\n    ids = ids.unsqueeze(0)\n  else:\n    ids = ids.contiguous()\n"
                 "  return self.inner.forward(ids)\n"),
      7);
}

TEST(VocabularyTest, IsTheLeastOfSeveralTables) {
  EXPECT_EQ(vocabulary("  return self.inner.forward(ids) + torch.embedding(self.small, ids)\n"), 5);
}

TEST(VocabularyTest, OtherInputsHaveTheirOwn) {
  const char* body = "  return self.inner.forward(ids) + torch.embedding(self.small, other)\n";
  EXPECT_EQ(vocabulary(body, 0), 7);
  EXPECT_EQ(vocabulary(body, 1), 5);
}

TEST(VocabularyTest, WhatIsNotKnownIsNotGuessed) {
  EXPECT_EQ(vocabulary("  return torch.embedding(self.small, ids % 5)\n"), std::nullopt);
  EXPECT_EQ(vocabulary("  if bool(other.sum() > 0):\n    r = self.inner.forward(ids)\n  else:\n    r = "
                       "self.small\n  return r\n"),
            std::nullopt);
  EXPECT_EQ(vocabulary("  return torch.embedding(self.small, torch.arange(ids.size(0)))\n"), std::nullopt);
  EXPECT_EQ(vocabulary("  return ids + other\n"), std::nullopt);
  for (const char* change :
       {"copy[copy >= 5] = 0", "copy.clamp_(max=4)", "copy.view(-1).masked_fill_(ids > 4, 0)"}) {
    EXPECT_EQ(vocabulary(std::string("  copy = ids.clone()\n  ") + change +
                         "\n  return torch.embedding(self.small, copy)\n"),
              std::nullopt)
        << change;
  }
  for (const char* part : {"ids[:, :1]", "ids[1:]", "ids[0]", "ids.narrow(0, 0, 1)", "ids[::2]"}) {
    EXPECT_EQ(vocabulary(std::string("  return torch.embedding(self.small, ") + part + ")\n"), std::nullopt)
        << part;
  }
}

}  // namespace
}  // namespace accel::train
