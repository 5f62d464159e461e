#include "train/loop/step.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "sample_files.hpp"
#include "temp_dir.hpp"
#include "train/c10d/fake_backend.hpp"
#include "train/optim/optimizer.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using ::testing::HasSubstr;
using torch::jit::Module;

constexpr std::int64_t kTokens = 3;  // The tokens of a sample.
constexpr std::int64_t kClasses = 8;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

void add(Module& module, const char* name, const at::Tensor& value) {
  module.register_parameter(name, value.detach().clone().set_requires_grad(true), false);
}

/// A model that returns logits and a loss of its own. Where `root` is 0 its gradient is infinite, and the
/// loss is not. `unused` has no gradient.
Module net() {
  at::manual_seed(1);
  Module root("Net");
  add(root, "tokens", at::randn({kClasses, 4}));
  add(root, "root", at::ones({4}));
  add(root, "head", at::randn({4, kClasses}));
  add(root, "bias", at::randn({kClasses}));
  add(root, "unused", at::randn({3}));
  root.define(
      "def forward(self, x, labels: Optional[Tensor] = None):\n"
      "  y = torch.tanh(torch.embedding(self.tokens, x)) + torch.sqrt(self.root)\n"
      "  logits = y @ self.head + self.bias\n"
      "  return logits, logits.square().mean()\n");
  return root;
}

/// Ten samples with labels, of which some do not count.
struct Data {
  at::Tensor ids =
      at::randint(kClasses, {10, kTokens}, at::make_generator<at::CPUGeneratorImpl>(2), at::kLong);
  at::Tensor labels =
      at::randint(kClasses, {10, kTokens}, at::make_generator<at::CPUGeneratorImpl>(3), at::kLong);

  Data() {
    labels.index_put_({at::tensor({0, 3, 9}), at::tensor({1, 2, 0})}, at::scalar_tensor(-100, at::kLong));
  }
};

using Parameters = std::map<std::string, at::Tensor>;

/// All that a run consists of, on one of `replicas` ranks whose other ranks do not exist.
class Training {
 public:
  Training(const config::TrainingConfig& config, const std::string& model, int replicas = 1,
           std::optional<GradScaler> given = std::nullopt)
      : world_(fake(replicas)),
        model_(ModelFile::open(model), options(config), at::kCPU,
               MeshGroups(world_, Mesh{replicas, 1}, std::make_unique<Group>(fake(1)),
                          std::make_unique<Group>(fake(replicas)), nullptr)),
        batches_(config.data, config.model, config.seed, model_.groups().data(), at::kCPU),
        optimizer_(model_.optimizer_plan(), model_.trainable_buffers(), 0),
        scaler_(std::move(given)),
        steps_(config, batches_, model_, optimizer_, scaler_) {}

  StepResult step(const Votes& votes = {}) { return steps_.run(++step_, votes); }
  StepRunner& runner() { return steps_; }
  ShardedModel& model() { return model_; }
  Optimizer& optimizer() { return optimizer_; }
  std::optional<GradScaler>& scaler() { return scaler_; }

  /// Copies of the parameters, by name.
  [[nodiscard]] Parameters parameters() const {
    Parameters parameters;
    for (const FlatBuffer* buffer : model_.trainable_buffers()) {
      for (std::size_t i = 0; i < buffer->parameters().size(); ++i)
        parameters[buffer->layout().parameters[i].spec.fqns[0]] = buffer->parameters()[i].detach().clone();
    }
    return parameters;
  }
  void fill(const std::string& name, double value) {
    const at::NoGradGuard no_grad;
    for (const FlatBuffer* buffer : model_.trainable_buffers()) {
      for (std::size_t i = 0; i < buffer->parameters().size(); ++i) {
        if (buffer->layout().parameters[i].spec.fqns[0] == name) buffer->parameters()[i].fill_(value);
      }
    }
  }

 private:
  static Group fake(int size) { return Group::over(c10::make_intrusive<FakeBackend>(0, size), at::kCPU); }
  static ShardingOptions options(const config::TrainingConfig& config) {
    ShardingOptions options;
    options.optimizer = config.optimizer;
    options.poison = true;
    return options;
  }

  Group world_;
  ShardedModel model_;
  TrainingBatches batches_;
  Optimizer optimizer_;
  std::optional<GradScaler> scaler_;
  StepRunner steps_;
  std::int64_t step_ = 0;
};

/// The same training in libtorch.
class Peer {
 public:
  Peer(const config::TrainingConfig& config, Module root)
      : config_(config), root_(std::move(root)), optimizer_(groups()) {}

  struct Result {
    double loss = 0;
    double grad_norm = 0;
  };

  /// One step with the micro-batches of two samples each that begin at `begins`.
  Result step(const std::vector<std::int64_t>& begins, double lr) {
    Result result;
    optimizer_.zero_grad();
    for (const std::int64_t begin : begins) {
      const c10::IValue output = root_.forward({data_.ids.narrow(0, begin, 2)});
      const at::Tensor logits = output.toTupleRef().elements()[0].toTensor();
      const at::Tensor loss =
          at::cross_entropy_loss(logits.view({-1, kClasses}), data_.labels.narrow(0, begin, 2).flatten());
      (loss / config_.gradient_accumulation_steps).backward();
      result.loss += loss.item<double>() / static_cast<double>(begins.size());
    }
    const double limit = config_.max_grad_norm.value_or(kInfinity);
    result.grad_norm = torch::nn::utils::clip_grad_norm_(tensors_, limit);
    for (auto& group : optimizer_.param_groups()) group.options().set_lr(lr);
    optimizer_.step();
    return result;
  }
  [[nodiscard]] Parameters parameters() const {
    Parameters parameters;
    for (const auto& parameter : root_.named_parameters())
      parameters[parameter.name] = parameter.value.detach();
    return parameters;
  }

 private:
  std::vector<torch::optim::OptimizerParamGroup> groups() {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const auto& parameter : root_.named_parameters()) {
      tensors_.push_back(parameter.value);
      auto options = std::make_unique<torch::optim::AdamWOptions>(0);
      options->eps(*config_.optimizer.options.eps);
      options->weight_decay(parameter.name == "bias" ? 0 : *config_.optimizer.options.weight_decay);
      groups.emplace_back(std::vector<at::Tensor>{parameter.value}, std::move(options));
    }
    return groups;
  }

  const config::TrainingConfig& config_;
  Data data_;
  Module root_;
  std::vector<at::Tensor> tensors_;
  torch::optim::AdamW optimizer_;
};

class StepTest : public ::testing::Test {
 protected:
  StepTest() {
    net().save(model());
    config_.data.train = {"tensors", (dir_ / "data.safetensors").string(), 0, ""};
    config_.data.batch_size = 2;
    config_.data.shuffle = false;
    config_.optimizer.lr = 0.05;
    config_.optimizer.options.eps = 0.1;  // A large one: the update is smooth where a gradient is small.
    config_.optimizer.options.weight_decay = 0.5;
    config_.optimizer.no_decay = {"bias"};
    config_.max_steps = 10;
    write(Data());
  }

  void write(const Data& data) {
    testing::write_safetensors(dir_ / "data.safetensors", {{"input_ids", data.ids}, {"labels", data.labels}});
  }
  [[nodiscard]] std::string model() const { return (dir_ / "net.pt").string(); }

  /// How far a parameter may be off after so many steps. A gradient is the sum of fewer than 256 numbers,
  /// none of which is larger than 2 and each of which is rounded by half of kEpsilon. The update changes by
  /// at most lr/eps times the gradient.
  [[nodiscard]] double bound(std::int64_t steps) const {
    const double update = config_.optimizer.lr / *config_.optimizer.options.eps * 256;
    return static_cast<double>(steps) * (update + 16) * kEpsilon;
  }
  /// The loss depends on fewer than 64 numbers of a token, each with a slope of at most 4.
  [[nodiscard]] double loss_bound(std::int64_t steps) const { return 64 * 4 * bound(steps); }

  static void expect_near(const Parameters& ours, const Parameters& theirs, double bound) {
    ASSERT_EQ(ours.size(), theirs.size());
    for (const auto& [name, value] : theirs)
      EXPECT_LT((ours.at(name) - value).abs().max().item<double>(), bound) << name;
  }
  static void expect_equal(const Parameters& ours, const Parameters& theirs) {
    ASSERT_EQ(ours.size(), theirs.size());
    for (const auto& [name, value] : theirs) EXPECT_TRUE(at::equal(ours.at(name), value)) << name;
  }

  TempDir dir_;
  config::TrainingConfig config_;
  std::vector<std::string> lines_;
  log::Redirect redirect_{[this](std::string_view line) { lines_.emplace_back(line); }};
};

/// The last step of the epoch has one micro-batch. As in Accelerate it is divided by 2, like the others.
TEST_F(StepTest, StepsAreThoseOfLibtorch) {
  config_.gradient_accumulation_steps = 2;
  config_.max_grad_norm = 0.25;
  config_.lr_scheduler = {.type = "linear", .warmup_steps = 2};
  Training run(config_, model());
  Peer peer(config_, net());
  const std::vector<std::vector<std::int64_t>> steps = {{0, 2}, {4, 6}, {8}, {0, 2}};
  const std::vector<double> factors = {0, 0.5, 1, 7.0 / 8};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto done = static_cast<std::int64_t>(i) + 1;
    const double lr = config_.optimizer.lr * factors[i];
    EXPECT_DOUBLE_EQ(run.runner().next_scale() * config_.optimizer.lr, lr);
    const StepResult ours = run.step();
    const Peer::Result theirs = peer.step(steps[i], lr);
    EXPECT_NEAR(ours.loss, theirs.loss, loss_bound(done)) << i;
    EXPECT_NEAR(ours.grad_norm, theirs.grad_norm, loss_bound(done)) << i;
    EXPECT_GT(ours.grad_norm, 0.25) << i;  // The gradients are clipped.
    EXPECT_DOUBLE_EQ(ours.lr, lr);
    EXPECT_FALSE(ours.skipped);
    EXPECT_FALSE(ours.error);
    const auto micro_batches = static_cast<std::int64_t>(steps[i].size());
    EXPECT_EQ(ours.micro_batches, micro_batches);
    EXPECT_EQ(ours.samples, 2 * micro_batches);
    EXPECT_EQ(ours.tokens, 2 * micro_batches * kTokens);
    expect_near(run.parameters(), peer.parameters(), bound(done));
  }
  EXPECT_EQ(run.optimizer().steps(), 4);
}

/// A scale that is a power of two changes no bit of a gradient in float32.
TEST_F(StepTest, ALossScaleChangesNeitherTheResultNorTheUpdate) {
  config_.max_grad_norm = 0.25;
  Parameters plain;
  StepResult without;
  {
    Training run(config_, model());
    without = run.step();
    plain = run.parameters();
  }
  Training run(config_, model(), 1, GradScaler({.init_scale = 1024, .growth_interval = 2}));
  const StepResult scaled = run.step();
  EXPECT_EQ(scaled.loss, without.loss);
  EXPECT_EQ(scaled.grad_norm, without.grad_norm);
  expect_equal(run.parameters(), plain);
  EXPECT_EQ(run.scaler()->state().growth_tracker, 1);
  run.step();
  EXPECT_EQ(run.scaler()->scale(), 2048);
}

TEST_F(StepTest, RanksWithTheSameBatchHaveTheSameStepAndAddTheirVotes) {
  Parameters plain;
  StepResult one;
  {
    Training run(config_, model());
    one = run.step({1, 2, 3});
    plain = run.parameters();
  }
  EXPECT_EQ(one.votes, (Votes{1, 2, 3}));
  Training run(config_, model(), /*replicas=*/4);
  const StepResult four = run.step({1, 2, 3});
  EXPECT_EQ(four.votes, (Votes{4, 8, 12}));
  EXPECT_EQ(four.loss, one.loss);
  EXPECT_EQ(four.grad_norm, one.grad_norm);
  EXPECT_EQ(four.micro_batches, 4);
  EXPECT_EQ(four.samples, 8);
  EXPECT_EQ(four.tokens, 8 * kTokens);
  EXPECT_FALSE(four.stop);
  expect_equal(run.parameters(), plain);
}

TEST_F(StepTest, AnInfiniteGradientIsAnErrorAndChangesNoParameter) {
  Training run(config_, model());
  run.fill("root", 0);
  const Parameters before = run.parameters();
  const StepResult result = run.step();
  ASSERT_TRUE(result.error);
  EXPECT_TRUE(result.skipped);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_EQ(result.error->kind(), ErrorKind::kDiverged);
  EXPECT_THAT(result.error->message(), HasSubstr("step 1: "));
  EXPECT_THAT(result.error->message(),
              HasSubstr("the first gradient in backward that is not finite is that of 'root'"));
  EXPECT_THAT(result.error->advice(), HasSubstr("training.skip_nonfinite"));
  expect_equal(run.parameters(), before);
  EXPECT_EQ(run.optimizer().steps(), 0);
}

TEST_F(StepTest, WithSkipNonfiniteSuchAStepIsAsIfItHadNotBeen) {
  config_.skip_nonfinite = true;
  config_.lr_scheduler = {.type = "constant_with_warmup", .warmup_steps = 4};
  Training run(config_, model());
  run.step();
  const Parameters before = run.parameters();
  const at::Tensor moments = run.optimizer().states()[0].tensors[0].clone();
  run.fill("root", 0);
  for (int skipped = 1; skipped <= 2; ++skipped) {
    const StepResult result = run.step();
    EXPECT_TRUE(result.skipped);
    EXPECT_FALSE(result.error);
    EXPECT_EQ(run.runner().skipped_in_a_row(), skipped);
    EXPECT_FALSE(run.model().trainable_buffers()[0]->gradient().defined());
  }
  EXPECT_EQ(lines_.size(), 2U);
  EXPECT_EQ(run.optimizer().steps(), 1);
  EXPECT_DOUBLE_EQ(run.runner().next_scale() * 0.05, 0.05 / 4);
  EXPECT_TRUE(run.optimizer().states()[0].tensors[0].equal(moments));
  Parameters after = run.parameters();
  after["root"] = before.at("root");
  expect_equal(after, before);

  run.fill("root", 1);
  EXPECT_FALSE(run.step().skipped);
  EXPECT_EQ(run.runner().skipped_in_a_row(), 0);
}

TEST_F(StepTest, AHundredSkippedStepsInARowAreTheMost) {
  config_.skip_nonfinite = true;
  Training run(config_, model());
  run.fill("root", 0);
  run.runner().set_skipped_in_a_row(99);
  EXPECT_FALSE(run.step().error);
  const StepResult result = run.step();
  ASSERT_TRUE(result.error);
  EXPECT_EQ(result.error->kind(), ErrorKind::kDiverged);
  EXPECT_THAT(result.error->message(), HasSubstr("100 steps before"));
}

TEST_F(StepTest, AnOverflowLowersTheLossScaleAndIsNoError) {
  Training run(config_, model(), 1, GradScaler({.init_scale = 1024}));
  run.fill("root", 0);
  run.runner().set_skipped_in_a_row(5);
  const Parameters before = run.parameters();
  const StepResult result = run.step();
  EXPECT_TRUE(result.skipped);
  EXPECT_FALSE(result.error);
  EXPECT_EQ(run.scaler()->scale(), 512);
  EXPECT_EQ(run.runner().skipped_in_a_row(), 5);  // The scale has a limit of its own.
  expect_equal(run.parameters(), before);
}

TEST_F(StepTest, ALossThatIsNaNLeavesTheLossScale) {
  config_.skip_nonfinite = true;
  Training run(config_, model(), 1, GradScaler({.init_scale = 1024}));
  run.fill("head", std::numeric_limits<double>::quiet_NaN());
  const StepResult result = run.step();
  EXPECT_TRUE(std::isnan(result.loss));
  EXPECT_THAT(lines_.at(0), HasSubstr("' itself is not finite before the step"));
  EXPECT_TRUE(result.skipped);
  EXPECT_FALSE(result.error);
  EXPECT_EQ(run.scaler()->scale(), 1024);
  EXPECT_EQ(run.scaler()->state().growth_tracker, 0);
  EXPECT_EQ(run.runner().skipped_in_a_row(), 1);
}

/// The second micro-batch has labels of which none counts.
TEST_F(StepTest, AMicroBatchWithoutALabelThatCountsHasNoWeight) {
  Data data;
  data.labels.narrow(0, 2, 2).fill_(-100);
  write(data);
  config_.gradient_accumulation_steps = 2;
  Training run(config_, model());
  const StepResult ours = run.step();
  config::TrainingConfig alone = config_;
  alone.gradient_accumulation_steps = 1;
  Peer peer(alone, net());
  const Peer::Result theirs = peer.step({0}, config_.optimizer.lr);
  EXPECT_EQ(ours.micro_batches, 2);
  EXPECT_EQ(ours.uncounted, 1);
  EXPECT_NEAR(ours.loss, theirs.loss, loss_bound(1));
  EXPECT_NEAR(ours.grad_norm, theirs.grad_norm, loss_bound(1));
  expect_near(run.parameters(), peer.parameters(), bound(1));
}

/// The mean by weights that are all 0 is 0/0, in the second micro-batch.
TEST_F(StepTest, AMicroBatchWhoseClassesWeighNothingHasNoWeight) {
  Data data;
  data.labels.fill_(1);
  data.labels.narrow(0, 2, 2).fill_(3);
  write(data);
  config_.gradient_accumulation_steps = 2;
  config_.model.class_weights.assign(kClasses, 1);
  config_.model.class_weights[3] = 0;
  for (const double smoothing : {0.0, 0.1}) {
    config_.model.label_smoothing = smoothing;
    config::TrainingConfig alone = config_;
    alone.gradient_accumulation_steps = 1;
    double loss = 0;
    Parameters expected;
    {
      Training other(alone, model());
      loss = other.step().loss;
      expected = other.parameters();
    }
    Training run(config_, model());
    const StepResult ours = run.step();
    EXPECT_FALSE(ours.error);
    EXPECT_EQ(ours.uncounted, 1);
    EXPECT_NEAR(ours.loss, loss, loss_bound(1));
    expect_near(run.parameters(), expected, bound(1));
  }
}

TEST_F(StepTest, AStepWithoutAnyLabelThatCountsIsSkippedUpToAHundredTimes) {
  Data data;
  data.labels.fill_(-100);
  write(data);
  Training run(config_, model());
  const Parameters before = run.parameters();
  const StepResult result = run.step();
  EXPECT_TRUE(result.skipped);
  EXPECT_FALSE(result.error);
  EXPECT_TRUE(std::isnan(result.loss));
  EXPECT_EQ(result.uncounted, 1);
  expect_equal(run.parameters(), before);
  run.runner().set_skipped_in_a_row(100);
  const StepResult last = run.step();
  ASSERT_TRUE(last.error);
  EXPECT_THAT(last.error->message(), HasSubstr("all are -100"));
  EXPECT_THAT(last.error->advice(), HasSubstr("labels"));
}

/// What its labels are is the model's business.
TEST_F(StepTest, AModelThatComputesItsLossWeighsItsMicroBatchesAlike) {
  Data data;
  data.labels.narrow(0, 2, 2).fill_(-100);
  write(data);
  config_.model.loss = "model";
  config_.model.output = "1";
  config_.model.inputs = {"input_ids", "labels"};
  config_.gradient_accumulation_steps = 2;
  Training run(config_, model());
  const StepResult result = run.step();
  double mean = 0;
  for (const std::int64_t begin : {0, 2}) {
    const c10::IValue output = net().forward({data.ids.narrow(0, begin, 2)});
    mean += output.toTupleRef().elements()[1].toTensor().item<double>() / 2;
  }
  EXPECT_NEAR(result.loss, mean, mean * 256 * kEpsilon);
  EXPECT_EQ(result.uncounted, 1);
  EXPECT_FALSE(result.skipped);
}

TEST_F(StepTest, TheRateOfTheNextStepFollowsTheStepsOfTheOptimizer) {
  config_.lr_scheduler.type = "linear";
  Training run(config_, model());
  EXPECT_DOUBLE_EQ(run.runner().next_scale() * 0.05, 0.05);
  std::vector<std::vector<std::int64_t>> parameter_steps;
  for (const OptimizerState& state : run.optimizer().states()) parameter_steps.push_back(state.steps);
  run.optimizer().restore_steps(5, std::move(parameter_steps));
  EXPECT_DOUBLE_EQ(run.runner().next_scale() * 0.05, 0.05 / 2);  // Half of max_steps.
  config_.lr_scheduler.total_steps = 20;
  EXPECT_DOUBLE_EQ(run.runner().next_scale() * 0.05, 0.05 * 3 / 4);
}

TEST(WithoutSignOfNanTest, ChangesOnlyTheSignOfANaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {nan, std::copysign(nan, -1.0)}) {
    EXPECT_TRUE(std::isnan(without_sign_of_nan(value)));
    EXPECT_FALSE(std::signbit(without_sign_of_nan(value)));
  }
  EXPECT_EQ(without_sign_of_nan(-1.5), -1.5);
  EXPECT_EQ(without_sign_of_nan(-kInfinity), -kInfinity);
}

}  // namespace
}  // namespace accel::train
