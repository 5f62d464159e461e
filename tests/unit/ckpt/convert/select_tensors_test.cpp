#include "ckpt/convert/select_tensors.hpp"

#include <gmock/gmock.h>

#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeCheckpoint;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Float tensors of one element each, and objects with the value 1, at these paths.
class SelectTensorsTest : public ::testing::Test {
 protected:
  FakeCheckpoint& fake(const std::vector<StatePath>& tensors, const std::vector<StatePath>& objects = {}) {
    std::vector<testing::Truth> truths;
    std::vector<StoredTensor> stored;
    for (const StatePath& path : tensors) {
      truths.push_back({path, DType::kFloat32, {1}, "1234"});
      stored.push_back({fqn_of(path), DType::kFloat32, {1}, {}});
    }
    checkpoint_ = std::make_unique<FakeCheckpoint>("nowhere", truths, stored);
    for (const StatePath& path : objects) checkpoint_->add_object(path, 1);
    return *checkpoint_;
  }

  static std::vector<std::string> names(const Checkpoint& checkpoint, const Selection& selection) {
    std::vector<std::string> names;
    for (const OutputItem& item : select_tensors(checkpoint, selection).state.tensors) {
      names.push_back(fqn_of(item.path));
    }
    return names;
  }

  static std::string usage_error(const Checkpoint& checkpoint, const Selection& selection) {
    return error_of(ErrorKind::kUsage, [&] { (void)select_tensors(checkpoint, selection); });
  }

  std::unique_ptr<FakeCheckpoint> checkpoint_;
};

TEST_F(SelectTensorsTest, AllInTheirOrderWithoutTheRoot) {
  const SelectedState selected =
      select_tensors(fake({{"model", "b"}, {"stats", "c"}, {"model", "a", std::int64_t{3}}, {"step"}}), {});
  ASSERT_EQ(selected.state.tensors.size(), 2U);
  EXPECT_EQ(selected.state.tensors[0].path, (StatePath{"b"}));
  EXPECT_EQ(selected.state.tensors[0].source, 0U);
  EXPECT_EQ(selected.state.tensors[1].path, (StatePath{"a", std::int64_t{3}}));
  EXPECT_EQ(selected.state.tensors[1].source, 2U);
  EXPECT_EQ(selected.state.tensors[1].shape, Dims{1});
  EXPECT_EQ(selected.state.tensors[1].tied_to, std::nullopt);
  EXPECT_THAT(selected.state.objects, IsEmpty());
  EXPECT_THAT(selected.outside, ElementsAre("stats.c", "step"));
}

TEST_F(SelectTensorsTest, ObjectsUnderTheRootAndBeside) {
  const SelectedState below =
      select_tensors(fake({{"model", "a"}}, {{"model", "n"}, {"epoch"}, {"model", "m", "k"}}), {});
  ASSERT_EQ(below.objects.size(), 2U);
  EXPECT_EQ(below.objects[0].path, (StatePath{"n"}));
  EXPECT_EQ(below.objects[0].source, 0U);
  EXPECT_EQ(below.objects[1].path, (StatePath{"m", "k"}));
  EXPECT_EQ(below.objects[1].source, 2U);
  EXPECT_THAT(below.outside_objects, ElementsAre("epoch"));
  EXPECT_THAT(below.outside, IsEmpty());
}

TEST_F(SelectTensorsTest, AnotherRoot) {
  const FakeCheckpoint& checkpoint = fake({{"model", "b"}, {"ema", "c"}});
  EXPECT_THAT(names(checkpoint, {.root = "ema"}), ElementsAre("c"));
  EXPECT_THAT(usage_error(checkpoint, {.root = "em"}), HasSubstr("no tensors under the key 'em'"));
  EXPECT_THAT(usage_error(fake({}), {.root = "model"}), HasSubstr("under the key 'model'"));
}

TEST_F(SelectTensorsTest, Globs) {
  const FakeCheckpoint& checkpoint = fake({{"h.0.w"}, {"h.1.w"}, {"h.10.w"}, {"ln.w"}, {"a[b]"}});
  EXPECT_THAT(names(checkpoint, {.include = {"h.*"}}), ElementsAre("h.0.w", "h.1.w", "h.10.w"));
  EXPECT_THAT(names(checkpoint, {.include = {"h.?.w", "ln*"}}), ElementsAre("h.0.w", "h.1.w", "ln.w"));
  EXPECT_THAT(names(checkpoint, {.include = {"h.[!0]*"}}), ElementsAre("h.1.w", "h.10.w"));
  EXPECT_THAT(names(checkpoint, {.include = {"a\\[b]"}}), ElementsAre("a[b]"));
  EXPECT_THAT(names(checkpoint, {.exclude = {"*.w"}}), ElementsAre("a[b]"));
  EXPECT_THAT(names(checkpoint, {.include = {"h.*"}, .exclude = {"*.1.*", "*10*"}}), ElementsAre("h.0.w"));
  EXPECT_THAT(names(checkpoint, {.include = {"h.0.w"}, .exclude = {"*"}}), IsEmpty());
}

TEST_F(SelectTensorsTest, EveryGlobMustMatch) {
  const FakeCheckpoint& checkpoint = fake({{"model", "a"}, {"ema", "z"}});
  EXPECT_EQ(usage_error(checkpoint, {.include = {"a", "b*"}}), "--include 'b*' matches no tensor");
  EXPECT_EQ(usage_error(checkpoint, {.exclude = {"A"}}), "--exclude 'A' matches no tensor");
  // The patterns see names without the root, and only those under it.
  EXPECT_EQ(usage_error(checkpoint, {.include = {"model.*"}}), "--include 'model.*' matches no tensor");
  EXPECT_EQ(usage_error(checkpoint, {.include = {"z"}}), "--include 'z' matches no tensor");
}

TEST_F(SelectTensorsTest, ParsesRenames) {
  EXPECT_EQ(parse_rename("module.="), std::pair(std::string("module."), std::string()));
  EXPECT_EQ(parse_rename("a=b=c"), std::pair(std::string("a"), std::string("b=c")));
  for (const char* text : {"", "=", "=x", "abc"}) {
    EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)parse_rename(text); }), HasSubstr("is not FROM=TO"));
  }
}

TEST_F(SelectTensorsTest, RenamesOnceWhereAComponentBegins) {
  const FakeCheckpoint& checkpoint = fake({{"module.a"},
                                           {"x.module.b"},
                                           {"submodule.c"},
                                           {"module.module.d"},
                                           {"x.submodule.module.e"},
                                           {"module"}});
  EXPECT_THAT(names(checkpoint, {.rename = {{"module.", ""}}}),
              ElementsAre("a", "x.b", "submodule.c", "module.d", "x.submodule.e", "module"));
  EXPECT_THAT(
      names(checkpoint, {.rename = {{"mod", "M"}}}),
      ElementsAre("Mule.a", "x.Mule.b", "submodule.c", "Mule.module.d", "x.submodule.Mule.e", "Mule"));
  EXPECT_THAT(names(checkpoint, {.rename = {{"module.", ""}, {"a", "module.z"}, {"module.z", "y"}}}),
              ElementsAre("y", "x.b", "submodule.c", "module.d", "x.submodule.e", "module"));
  EXPECT_THAT(names(fake({{"a.b.c"}, {"a.b"}, {"b.c"}}), {.rename = {{"b.c", "q"}}}),
              ElementsAre("a.q", "a.b", "q"));
}

TEST_F(SelectTensorsTest, ARenamedPathIsOneKey) {
  const FakeCheckpoint& checkpoint = fake({{"model", "a", "b"}, {"model", "c", "d"}});
  const SelectedState selected = select_tensors(checkpoint, {.rename = {{"a.", "x."}}});
  EXPECT_EQ(selected.state.tensors[0].path, (StatePath{"x.b"}));
  EXPECT_EQ(selected.state.tensors[1].path, (StatePath{"c", "d"}));
}

TEST_F(SelectTensorsTest, EveryRenameMustChangeAName) {
  const FakeCheckpoint& checkpoint = fake({{"a.w"}, {"b.w"}});
  EXPECT_EQ(usage_error(checkpoint, {.rename = {{"c", "d"}}}), "--rename 'c=d' changes no name");
  EXPECT_EQ(usage_error(checkpoint, {.rename = {{"a.w", "a.w"}}}), "--rename 'a.w=a.w' changes no name");
  EXPECT_EQ(usage_error(checkpoint, {.include = {"b*"}, .rename = {{"a.", ""}}}),
            "--rename 'a.=' changes no name");
}

TEST_F(SelectTensorsTest, GlobsSeeTheNamesBeforeRenaming) {
  EXPECT_THAT(names(fake({{"module.a"}, {"b"}}), {.include = {"module.*"}, .rename = {{"module.", ""}}}),
              ElementsAre("a"));
}

TEST_F(SelectTensorsTest, TwoTensorsOfOneName) {
  EXPECT_EQ(usage_error(fake({{"module.a"}, {"a"}}), {.rename = {{"module.", ""}}}),
            "'module.a' and 'a' would both be called 'a'");
  EXPECT_THAT(names(fake({{"module.a"}, {"a"}}), {.exclude = {"a"}, .rename = {{"module.", ""}}}),
              ElementsAre("a"));
  EXPECT_THAT(usage_error(fake({{"a", "b"}, {"a.b"}}), {}), HasSubstr("both be called 'a.b'"));
}

TEST_F(SelectTensorsTest, OnlyFloatingTensorsAreConverted) {
  std::vector<testing::Truth> truths;
  std::vector<StoredTensor> stored(4);
  for (const DType dtype : {DType::kFloat64, DType::kInt32, DType::kFloat8E4M3FN, DType::kComplex64}) {
    truths.push_back({{std::string(torch_name(dtype))}, dtype, {1}, ""});
  }
  const FakeCheckpoint checkpoint("nowhere", truths, stored);
  const SelectedState selected = select_tensors(checkpoint, {.dtype = DType::kBFloat16});
  std::vector<DType> dtypes;
  for (const OutputItem& item : selected.state.tensors) dtypes.push_back(item.dtype);
  EXPECT_THAT(dtypes, ElementsAre(DType::kBFloat16, DType::kInt32, DType::kBFloat16, DType::kComplex64));
  EXPECT_THAT(error_of(ErrorKind::kFailure,
                       [&] { (void)select_tensors(checkpoint, {.dtype = DType::kFloat8E4M3FN}); }),
              HasSubstr("'float64' is float64, which cannot be converted to float8_e4m3fn"));
}

}  // namespace
}  // namespace accel::ckpt
