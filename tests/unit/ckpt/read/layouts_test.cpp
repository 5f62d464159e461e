#include "ckpt/read/layouts.hpp"

#include <gmock/gmock.h>

#include "ckpt/read/layout_parts.hpp"
#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t k0 = 0;

// A checkpoint with tensors under these paths, and with objects under those. The tensors `step` are scalars,
// and all others are matrices of float32.
std::unique_ptr<testing::FakeCheckpoint> made(const std::vector<StatePath>& tensors,
                                              const std::vector<StatePath>& objects = {}) {
  std::vector<testing::Truth> truths;
  std::vector<StoredTensor> stored;
  for (const StatePath& path : tensors) {
    const std::string name = fqn_of(path);
    const Dims shape = name.ends_with("step") ? Dims{} : Dims{2, 2};
    truths.push_back({path, DType::kFloat32, shape, std::string(shape.empty() ? 4 : 16, '1')});
    stored.push_back({name, DType::kFloat32, shape, {}});
  }
  auto checkpoint = std::make_unique<testing::FakeCheckpoint>("nowhere", truths, stored);
  for (const StatePath& path : objects) checkpoint->add_object(path, 1);
  return checkpoint;
}

// The names that the layout gives to the tensors that it takes.
std::vector<std::string> names(const Checkpoint& checkpoint, const Layout& layout) {
  std::vector<std::string> names;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    if (const auto path = layout.below(entry.path)) names.push_back(fqn_of(*path));
  }
  return names;
}

std::vector<std::string> weights(const Checkpoint& checkpoint) {
  return names(checkpoint, chosen_layout(checkpoint));
}

StatePath root_of(const std::vector<StatePath>& tensors, const std::vector<StatePath>& objects = {}) {
  return layout_of(*made(tensors, objects)).root;
}

std::string left_out(const Checkpoint& checkpoint) {
  return to_string(left_out_parts(checkpoint, layout_of(checkpoint), Objects::kLeftOut));
}

// The state of AdamW for the parameter `w`, below these keys.
void add_adamw(const StatePath& root, std::vector<StatePath>& tensors, std::vector<StatePath>& objects) {
  const auto joined = [&](StatePath path) {
    path.insert(path.begin(), root.begin(), root.end());
    return path;
  };
  for (const char* name : {"step", "exp_avg", "exp_avg_sq"}) tensors.push_back(joined({"state", "w", name}));
  for (const char* name : {"lr", "eps"}) objects.push_back(joined({"param_groups", k0, name}));
}

TEST(LayoutTest, TheKeyOfAllEntriesIsTheRoot) {
  EXPECT_EQ(root_of({{"net", "a"}, {"net", "b", "c"}}), StatePath{"net"});
  EXPECT_EQ(root_of({{"app", "a"}}, {{"app", "n"}}), StatePath{"app"});
  EXPECT_EQ(root_of({{k0, "a"}}), StatePath{k0});
  EXPECT_EQ(root_of({}, {{"o", "n"}}), StatePath{"o"});
}

TEST(LayoutTest, ModulesOfANestedStateDictAreNoRoots) {
  EXPECT_EQ(root_of({}), StatePath{});
  EXPECT_EQ(root_of({{"a"}, {"b"}}), StatePath{});
  EXPECT_EQ(root_of({{"model"}}), StatePath{});
  EXPECT_EQ(root_of({{"h", "a"}, {"g", "a"}}), StatePath{});
  EXPECT_EQ(root_of({{"h", "a"}}, {{"epoch"}}), StatePath{});
  EXPECT_EQ(root_of({{"encoder", "model", "w"}, {"encoder", "norm", "w"}}), StatePath{"encoder"});
  EXPECT_EQ(root_of({{"module", "w"}, {"bias"}}), StatePath{});
  EXPECT_EQ(root_of({{"a", "w"}, {"scaler", "step"}}), StatePath{});
}

TEST(LayoutTest, KnownKeysOfWeights) {
  for (const char* key : {"model", "state_dict", "model_state_dict", "module"}) {
    const auto checkpoint = made({{key, "w"}, {key, "b.w"}}, {{"epoch"}, {key, "extra"}});
    EXPECT_THAT(weights(*checkpoint), ElementsAre("w", "b.w"));
    EXPECT_EQ(left_out(*checkpoint), "'epoch', '" + std::string(key) + ".extra'");
  }
}

TEST(LayoutTest, AnOptimizerIsKnownByItsStructure) {
  for (const StatePath& root : {StatePath{"optimizer"}, StatePath{"anything"},
                                StatePath{"optimizer_states", k0}, StatePath{"a", "b"}}) {
    std::vector<StatePath> tensors{{"net", "w"}, {"net", "v"}};
    std::vector<StatePath> objects;
    add_adamw(root, tensors, objects);
    const auto checkpoint = made(tensors, objects);
    EXPECT_THAT(weights(*checkpoint), ElementsAre("w", "v"));
    EXPECT_EQ(left_out(*checkpoint), "'" + fqn_of({root.front()}) + "' (3 tensors, 2 objects)");
    const std::optional<Layout> optimizer = optimizer_layout(*checkpoint);
    ASSERT_TRUE(optimizer);
    EXPECT_EQ(optimizer->root, root);
    EXPECT_THAT(names(*checkpoint, *optimizer),
                ElementsAre("state.w.step", "state.w.exp_avg", "state.w.exp_avg_sq"));
  }
  EXPECT_FALSE(optimizer_layout(*made({{"model", "w"}})));
}

TEST(LayoutTest, BelowAKeyOfAnObjectOfTheProgram) {
  for (const char* key : {"app", "state"}) {
    std::vector<StatePath> tensors{{key, "model", "w"}};
    std::vector<StatePath> objects;
    EXPECT_EQ(root_of(tensors), (StatePath{key, "model"}));
    add_adamw({key, "optim"}, tensors, objects);
    const auto checkpoint = made(tensors, objects);
    EXPECT_THAT(weights(*checkpoint), ElementsAre("w"));
    EXPECT_EQ(left_out(*checkpoint), "'" + std::string(key) + ".optim' (3 tensors, 2 objects)");
  }
}

TEST(LayoutTest, WeightsBesideTheStateOfTheRun) {
  const auto checkpoint = made({{"w"},
                                {"layers.0.w"},
                                {"optimizer", "state.w.exp_avg"},
                                {"optimizer", "state.w.step"},
                                {"train_state", "step"}},
                               {{"optimizer", "param_groups.w.lr"},
                                {"lr_scheduler", "last_epoch"},
                                {"dataloader", "dp_rank_0"},
                                {"epoch"},
                                {"x._extra_state"}});
  EXPECT_THAT(weights(*checkpoint), ElementsAre("w", "layers.0.w"));
  EXPECT_EQ(
      left_out(*checkpoint),
      "'optimizer' (2 tensors, 1 object), 'train_state' (1 tensor), 'lr_scheduler', 'dataloader', 'epoch', "
      "'x._extra_state'");
  EXPECT_TRUE(layout_of(*checkpoint).below({"x._extra_state"}));
  EXPECT_FALSE(layout_of(*checkpoint).below({"epoch"}));
}

TEST(LayoutTest, FlatNamesOfAnOptimizerEndInThoseOfWeights) {
  const auto checkpoint = made(
      {{"a.w"}, {"bn.step"}, {"optimizer.state.a.w.exp_avg"}, {"optimizer.state.a.w.step"}, {"b.exp_avg"}});
  // Nothing is called 'b', so 'b.exp_avg' may be a buffer.
  EXPECT_THAT(weights(*checkpoint), ElementsAre("a.w", "bn.step", "b.exp_avg"));
  EXPECT_EQ(left_out(*checkpoint), "'optimizer' (2 tensors)");
}

// The flat names of Megatron-Core's torch_dist (also below NeMo's `module.`), of Adafactor, Shampoo, and of
// the 8-bit states of bitsandbytes and torchao.
TEST(LayoutTest, FlatNamesOfOptimizersOfOtherPrograms) {
  const std::vector<std::string> states = {
      "optimizer.state.exp_avg.a.w",
      "chained_0.optimizer.state.fp32_param.a.w",
      "chained_1.optimizer.distributed.dp_group_idx_1.param_state.exp_avg.a.w",
      "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
      "torch.float32).bucket_idx_0.param",
      "optimizers.0.state.a.w.state1",
      "opt_state.mu.a.w",
      "trainer.optim_state_dict.a.w",
      "state.a.w.exp_avg_sq_row",
      "state.a.w.preconditioner.0",
      "state.a.w.absmax1",
      "run.state.a.w.exp_avg.codes",
      "state.a.w.a_name_of_its_own"};
  std::vector<StatePath> tensors{{"a.w"},        {"state.x"},       {"optimizer_head.w"},    {"optimal.w"},
                                 {"b.w.absmax"}, {"net.state.a.w"}, {"net.state.a.w.absmax"}};
  for (const std::string& name : states) tensors.push_back({name});
  const auto checkpoint = made(tensors, {{"optimizer.optimizer.param_groups.0.lr/shard_0_1"},
                                         {"rng_state/shard_0_1"},
                                         {"a._extra_state/shard_0_1"}});
  EXPECT_THAT(weights(*checkpoint), ElementsAre("a.w", "state.x", "optimizer_head.w", "optimal.w",
                                                "b.w.absmax", "net.state.a.w", "net.state.a.w.absmax"));
  const Layout layout = layout_of(*checkpoint);
  EXPECT_THAT(left_out(*checkpoint),
              HasSubstr("'optimizer' (2 tensors, 1 object), 'chained_0.optimizer' (1 tensor)"));
  EXPECT_FALSE(layout.below({"optimizer.optimizer.param_groups.0.lr/shard_0_1"}));
  EXPECT_FALSE(layout.below({"rng_state/shard_0_1"}));
  EXPECT_TRUE(layout.below({"a._extra_state/shard_0_1"}));
  // Each of them alone is an optimizer's, but for a name that no optimizer is known to use.
  for (const std::string& name : states)
    EXPECT_EQ(layout_of(*made({{name}})).is_optimizer,
              !name.ends_with("of_its_own") && !name.starts_with("run"))
        << name;
  // What a message calls a part is a root, of the optimizer alone.
  const Layout chosen = chosen_layout(*checkpoint, "chained_0.optimizer");
  EXPECT_TRUE(chosen.is_optimizer);
  EXPECT_THAT(names(*checkpoint, chosen), ElementsAre("state.fp32_param.a.w"));
  EXPECT_THAT(
      names(*checkpoint, chosen_layout(*checkpoint, "state")),
      ElementsAre("a.w.exp_avg_sq_row", "a.w.preconditioner.0", "a.w.absmax1", "a.w.a_name_of_its_own"));
  for (const char* root : {"chained_0", "net", "optimal"}) {
    EXPECT_FALSE(has_root(*checkpoint, root));
    EXPECT_THROW((void)chosen_layout(*checkpoint, root), Error) << root;
  }
  // Below the key of the weights, a module may have any name.
  EXPECT_THAT(weights(*made({{"model", "a.w"}, {"model", "optimizer.w"}})),
              ElementsAre("a.w", "optimizer.w"));
}

TEST(LayoutTest, AKeyOfAnOptimizerCountsAtAnyDepth) {
  std::vector<StatePath> tensors{{"trainer", "state", "model", "w"}};
  std::vector<StatePath> objects;
  add_adamw({"trainer", "state", "optimizers", k0}, tensors, objects);
  add_adamw({"trainer", "state", "optimizers", 1}, tensors, objects);
  const auto deep = made(tensors, objects);
  EXPECT_THAT(weights(*deep), ElementsAre("w"));
  EXPECT_EQ(left_out(*deep), "'trainer.state.optimizers' (6 tensors, 4 objects)");
  for (const char* key : {"optim", "optimizer", "optimizers", "opt_state", "optimizer_actor", "optim0"}) {
    const auto checkpoint =
        made({{"a", "b", "net", "w"}, {"a", "b", key, "mu", "w"}, {"a", "b", key, "nu", "w"}});
    EXPECT_THAT(weights(*checkpoint), ElementsAre("w")) << key;
    ASSERT_TRUE(optimizer_layout(*checkpoint)) << key;
    const std::string root = std::string("a.b.") + key;
    EXPECT_TRUE(chosen_layout(*checkpoint, root).is_optimizer) << key;
    EXPECT_THAT(names(*checkpoint, chosen_layout(*checkpoint, root)), ElementsAre("mu.w", "nu.w")) << key;
  }
  EXPECT_THAT(weights(*made({{"a", "w"}, {"optimal", "w"}})), ElementsAre("a.w", "optimal.w"));
}

TEST(LayoutTest, WeightsThatAreCalledLikeMomentsAreWeights) {
  const auto flat = made({{"model", "prior"}, {"model", "block.prior.mu"}, {"model", "block.prior.sum"}});
  EXPECT_THAT(weights(*flat), ElementsAre("prior", "block.prior.mu", "block.prior.sum"));
  EXPECT_EQ(left_out(*flat), "");
  const auto alone = made({{"prior"}, {"block.prior.mu"}});
  EXPECT_THAT(weights(*alone), ElementsAre("prior", "block.prior.mu"));
}

TEST(LayoutTest, SeveralSetsOfWeightsAreAmbiguous) {
  const auto checkpoint = made({{"model", "w"}, {"ema", "w"}, {"stats", "x"}});
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)chosen_layout(*checkpoint); }),
              HasSubstr("'nowhere' holds several sets of weights: 'model', 'ema'"));
  EXPECT_THAT(names(*checkpoint, chosen_layout(*checkpoint, "ema")), ElementsAre("w"));
}

TEST(LayoutTest, MatricesUnderAnotherKeyAreNotLeftOutUnasked) {
  const auto checkpoint = made({{"model", "w"}, {"head", "x"}, {"train", "step"}});
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)chosen_layout(*checkpoint); }),
              HasSubstr("'nowhere' holds several sets of weights: 'model', 'head'"));
  EXPECT_THAT(names(*checkpoint, chosen_layout(*checkpoint, "model")), ElementsAre("w"));
  // Scalars are not a model. Nor is what has the key of an optimizer or of state of the run.
  EXPECT_THAT(weights(*made({{"model", "w"}, {"train", "step"}})), ElementsAre("w"));
  for (const char* key :
       {"optimizer", "optim", "optimizer_state_dict", "optimizer_states", "callbacks", "rng"})
    EXPECT_THAT(weights(*made({{"model", "w"}, {key, "x"}})), ElementsAre("w")) << key;
}

TEST(LayoutTest, AChosenRootIsAPathOfKeys) {
  std::vector<StatePath> tensors{{"app", "model", "w"}, {"app.model", "v"}, {"x.y", "z", "u"}};
  std::vector<StatePath> objects;
  add_adamw({"app", "optim"}, tensors, objects);
  const auto checkpoint = made(tensors, objects);
  const auto below = [&](const char* root) { return names(*checkpoint, chosen_layout(*checkpoint, root)); };
  EXPECT_THAT(below("app\\.model"), ElementsAre("v"));
  EXPECT_THAT(below("x.y"), ElementsAre("z.u"));
  EXPECT_THAT(below("x\\.y.z"), ElementsAre("u"));
  EXPECT_THAT(below("app"), ElementsAre("w"));
  EXPECT_TRUE(chosen_layout(*checkpoint, "app.optim").is_optimizer);
  EXPECT_THAT(below("app.optim"), ElementsAre("state.w.step", "state.w.exp_avg", "state.w.exp_avg_sq"));
  EXPECT_THAT(below("app.optim.state.w"), ElementsAre("step", "exp_avg", "exp_avg_sq"));
  for (const char* root : {"ap", "app.", "app.mode", "x\\.y\\.z", "app.model.w", "app\\"})
    EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)below(root); }),
                HasSubstr("has no tensors under the key"));
  EXPECT_THAT(error_of(ErrorKind::kUsage, [&] { (void)below("app.model"); }), HasSubstr("2 places"));
  EXPECT_TRUE(has_root(*checkpoint, "app"));
  EXPECT_FALSE(has_root(*checkpoint, "w"));
}

TEST(LayoutTest, OptimizersAlone) {
  const auto optimizer = [](const std::vector<StatePath>& tensors,
                            const std::vector<StatePath>& objects = {}) {
    return layout_of(*made(tensors, objects)).is_optimizer;
  };
  EXPECT_TRUE(optimizer({{"optimizer", "state", "w", "exp_avg"}}));
  EXPECT_TRUE(optimizer({{"optimizer", "unknown"}}));
  EXPECT_TRUE(optimizer({{"state", k0, "exp_avg"}}, {{"param_groups", k0, "lr"}}));
  EXPECT_TRUE(optimizer({{"optim", "state", "w"}}, {{"optim", "param_groups", "lr"}}));
  EXPECT_TRUE(optimizer({}, {{"param_groups", k0, "lr"}}));
  EXPECT_TRUE(optimizer({{"state.w.exp_avg"}, {"state.w.step"}}));
  EXPECT_FALSE(optimizer({{"model", "state"}, {"model", "w"}}));
  EXPECT_FALSE(optimizer({{"state", "w"}}));
  EXPECT_FALSE(optimizer({{"a"}, {"b"}}));
  EXPECT_FALSE(optimizer({}));

  std::vector<StatePath> tensors;
  std::vector<StatePath> objects;
  add_adamw({"optimizer", "adam"}, tensors, objects);
  add_adamw({"optimizer", "muon"}, tensors, objects);
  const Layout several = layout_of(*made(tensors, objects));
  EXPECT_TRUE(several.is_optimizer);
  EXPECT_EQ(several.root, StatePath{"optimizer"});
  EXPECT_THAT(left_out_parts(*made(tensors, objects), several, Objects::kTaken), IsEmpty());
}

TEST(LayoutTest, ALineNamesTheFirstParts) {
  std::vector<LayoutPart> parts(9, LayoutPart{"p", 0, 1});
  parts[0] = {"a", 1, 2};
  EXPECT_EQ(to_string(parts), "'a' (1 tensor, 2 objects), 'p', 'p', 'p', 'p', 'p' and 3 more");
}

}  // namespace
}  // namespace accel::ckpt
