#include "ckpt/diff/plan.hpp"

#include <gmock/gmock.h>

#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeCheckpoint;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<FakeCheckpoint> fake(const std::vector<StatePath>& tensors,
                                     const std::vector<StatePath>& objects = {}, Kind kind = Kind::kDcp,
                                     const std::map<std::string, std::string>& metadata = {}) {
  std::vector<testing::Truth> truths;
  for (const StatePath& path : tensors) truths.push_back({path, DType::kFloat32, {1}, "1234"});
  auto checkpoint =
      std::make_unique<FakeCheckpoint>("some/where", truths, std::vector<StoredTensor>(truths.size()));
  for (const StatePath& path : objects) checkpoint->add_object(path, 1);
  checkpoint->contents().kind = kind;
  checkpoint->contents().metadata = metadata;
  return checkpoint;
}

std::vector<std::string> names(const std::vector<DiffEntry>& entries) {
  std::vector<std::string> names;
  for (const DiffEntry& entry : entries) names.push_back(entry.name);
  return names;
}

TEST(DiffPlanTest, PairsByName) {
  const auto a = fake({{"x"}, {"y"}, {"z"}});
  const auto b = fake({{"z"}, {"x"}, {"w"}});
  const DiffPlan plan = plan_diff(*a, *b, {});
  EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"x", 0, 1}, DiffPair{"z", 2, 0}));
  EXPECT_THAT(plan.tensors_only_a, ElementsAre(DiffEntry{"y", 1}));
  EXPECT_THAT(plan.tensors_only_b, ElementsAre(DiffEntry{"w", 2}));
  EXPECT_THAT(plan.left_out_a, IsEmpty());
}

TEST(DiffPlanTest, ARootThatOneSideHasIsLeftOut) {
  const auto a = fake({{"model", "h", "w"}, {"model", "b"}, {"stats", "c"}}, {{"epoch"}});
  const auto b = fake({{"h.w"}, {"b"}});
  for (const bool swapped : {false, true}) {
    const DiffPlan plan = swapped ? plan_diff(*b, *a, {}) : plan_diff(*a, *b, {});
    EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"h.w", 0, 0}, DiffPair{"b", 1, 1}));
    EXPECT_THAT(plan.tensors_only_a, IsEmpty());
    EXPECT_THAT(plan.tensors_only_b, IsEmpty());
    EXPECT_THAT(swapped ? plan.left_out_b : plan.left_out_a, ElementsAre("stats.c", "epoch"));
    EXPECT_THAT(swapped ? plan.left_out_a : plan.left_out_b, IsEmpty());
  }
}

TEST(DiffPlanTest, OfTheSameRootEverythingIsCompared) {
  const auto a = fake({{"model", "w"}, {"ema", "w"}}, {{"epoch"}});
  const auto b = fake({{"model", "w"}}, {{"epoch"}});
  const DiffPlan plan = plan_diff(*a, *b, {});
  EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"model.w", 0, 0}));
  EXPECT_EQ(names(plan.tensors_only_a), std::vector<std::string>{"ema.w"});
  EXPECT_THAT(plan.objects, ElementsAre(DiffPair{"epoch", 0, 0}));
  EXPECT_THAT(plan.left_out_a, IsEmpty());
  // With nothing but the root on both sides, the names are shorter.
  EXPECT_THAT(plan_diff(*fake({{"model", "w"}}), *fake({{"model", "w"}}), {}).tensors,
              ElementsAre(DiffPair{"w", 0, 0}));
}

TEST(DiffPlanTest, AChosenRoot) {
  const auto a = fake({{"model", "w"}, {"ema", "w"}});
  const auto b = fake({{"model", "w"}});
  const DiffPlan plan = plan_diff(*a, *b, {.root = "ema"});
  EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"w", 1, 0}));
  EXPECT_THAT(plan.left_out_a, ElementsAre("model.w"));
  EXPECT_THAT(plan_diff(*b, *a, {.root = "ema"}).tensors, ElementsAre(DiffPair{"w", 0, 1}));
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)plan_diff(*a, *b, {.root = "mode"}); }),
              HasSubstr("neither 'some/where' nor"));
}

TEST(DiffPlanTest, RenamesAsIfAHadBeenWrittenSo) {
  const auto a = fake({{"module.x"}, {"y"}}, {{"module.o"}});
  const auto b = fake({{"x"}, {"module.y"}}, {{"o"}});
  const DiffPlan plan = plan_diff(*a, *b, {.rename = {{"module.", ""}}});
  EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"x", 0, 0}));
  EXPECT_THAT(plan.objects, ElementsAre(DiffPair{"o", 0, 0}));
  EXPECT_THAT(names(plan.tensors_only_b), ElementsAre("module.y"));
  EXPECT_EQ(error_of(ErrorKind::kUsage,
                     [&] {
                       (void)plan_diff(*a, *b, {.rename = {{"x.", ""}}});
                     }),
            "--rename 'x.=' changes no name");
  EXPECT_EQ(error_of(ErrorKind::kUsage,
                     [&] {
                       (void)plan_diff(*a, *b, {.rename = {{"module.x", "y"}}});
                     }),
            "'module.x' and 'y' of 'some/where' would both be called 'y'");
}

TEST(DiffPlanTest, IncludeAndExcludeSeeTheCommonNames) {
  const auto a = fake({{"m.x"}, {"m.y"}, {"n.z"}}, {{"m.o"}});
  const auto b = fake({{"x"}, {"q"}, {"n.z"}}, {{"o"}});
  DiffPlan plan = plan_diff(*a, *b, {.rename = {{"m.", ""}}, .include = {"?"}, .exclude = {"y"}});
  EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"x", 0, 0}));
  EXPECT_THAT(plan.tensors_only_a, IsEmpty());
  EXPECT_THAT(names(plan.tensors_only_b), ElementsAre("q"));
  EXPECT_THAT(plan.objects, ElementsAre(DiffPair{"o", 0, 0}));
  // A glob may match on one side alone.
  plan = plan_diff(*a, *b, {.include = {"q", "m.*"}});
  EXPECT_THAT(names(plan.tensors_only_a), ElementsAre("m.x", "m.y"));
  EXPECT_THAT(names(plan.tensors_only_b), ElementsAre("q"));
  EXPECT_THAT(names(plan.objects_only_a), ElementsAre("m.o"));
  EXPECT_EQ(error_of(ErrorKind::kUsage, [&] { (void)plan_diff(*a, *b, {.exclude = {"z"}}); }),
            "--exclude 'z' matches no tensor");
}

TEST(DiffPlanTest, ObjectsOnlyWhereBothCanHoldThem) {
  const auto dcp = fake({{"w"}}, {{"o"}, {"p"}});
  const auto torch = fake({{"w"}}, {{"p"}, {"q"}}, Kind::kTorch);
  const DiffPlan plan = plan_diff(*dcp, *torch, {});
  EXPECT_THAT(plan.objects, ElementsAre(DiffPair{"p", 1, 0}));
  EXPECT_THAT(names(plan.objects_only_a), ElementsAre("o"));
  EXPECT_THAT(names(plan.objects_only_b), ElementsAre("q"));
  const DiffPlan without = plan_diff(*dcp, *fake({{"w"}}, {}, Kind::kSafetensors), {});
  EXPECT_THAT(without.objects_only_a, IsEmpty());
}

class TiedTest : public ::testing::Test {
 protected:
  std::unique_ptr<FakeCheckpoint> both_ = fake({{"model", "wte"}, {"model", "head"}});
  std::unique_ptr<FakeCheckpoint> once_ =
      fake({{"wte"}}, {}, Kind::kSafetensors, {{"format", "pt"}, {"head", "wte"}});
};

TEST_F(TiedTest, ATiedNameIsThere) {
  EXPECT_THAT(plan_diff(*both_, *once_, {}).tensors,
              ElementsAre(DiffPair{"wte", 0, 0}, DiffPair{"head", 1, 0}));
  EXPECT_THAT(plan_diff(*once_, *both_, {}).tensors,
              ElementsAre(DiffPair{"wte", 0, 0}, DiffPair{"head", 0, 1}));
  EXPECT_THAT(plan_diff(*once_, *both_, {}).tensors_only_b, IsEmpty());
}

TEST_F(TiedTest, ATiedNameThatNobodyAsksForIsNoFinding) {
  const DiffPlan plan = plan_diff(*once_, *fake({{"wte"}}), {});
  EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"wte", 0, 0}));
  EXPECT_THAT(plan.tensors_only_a, IsEmpty());
}

TEST_F(TiedTest, TiedOnBothSides) {
  EXPECT_THAT(plan_diff(*once_, *once_, {}).tensors, ElementsAre(DiffPair{"wte", 0, 0}));
  const auto elsewhere = fake({{"wte"}, {"other"}}, {}, Kind::kSafetensors, {{"head", "other"}});
  const DiffPlan plan = plan_diff(*once_, *elsewhere, {});
  EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"wte", 0, 0}, DiffPair{"head", 0, 1}));
}

TEST_F(TiedTest, NotesThatAreNone) {
  const auto notes = fake({{"wte"}, {"x"}}, {}, Kind::kSafetensors, {{"head", "not there"}, {"x", "wte"}});
  const DiffPlan plan = plan_diff(*notes, *fake({{"wte"}, {"x"}, {"head"}}), {});
  EXPECT_THAT(plan.tensors, ElementsAre(DiffPair{"wte", 0, 0}, DiffPair{"x", 1, 1}));
  EXPECT_THAT(names(plan.tensors_only_b), ElementsAre("head"));
}

TEST_F(TiedTest, TiedNamesAreRenamedAndChosenToo) {
  const auto flat = fake({{"h.new"}, {"wte"}});
  EXPECT_THAT(plan_diff(*once_, *flat, {.rename = {{"head", "h.new"}}, .include = {"h.*"}}).tensors,
              ElementsAre(DiffPair{"h.new", 0, 0}));
}

}  // namespace
}  // namespace accel::ckpt
