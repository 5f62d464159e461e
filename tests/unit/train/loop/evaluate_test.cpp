#include "train/loop/evaluate.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/files/atomic_file.hpp"
#include "base/files/file.hpp"
#include "ranks_as_forks.hpp"
#include "sample_files.hpp"
#include "temp_dir.hpp"
#include "test_port.hpp"
#include "train/loop/loss.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using torch::jit::Module;

constexpr std::int64_t kClasses = 8;
constexpr std::int64_t kSamples = 5;

Module linear(std::int64_t out, std::int64_t in) {
  Module module("Linear");
  module.register_parameter("weight", at::randn({out, in}).requires_grad_(), false);
  module.define("def forward(self, x):\n  return torch.linear(x, self.weight)\n");
  return module;
}

/// Logits of a linear, from tokens.
class EvaluateTest : public ::testing::Test {
 protected:
  EvaluateTest() {
    at::manual_seed(1);
    root_.register_parameter("tokens", at::randn({kClasses, 4}).requires_grad_(), false);
    root_.register_parameter("head", at::randn({kClasses, 4}).requires_grad_(), false);
    root_.register_module("up", linear(8, 4));
    root_.register_module("down", linear(4, 8));
    root_.define(
        "def forward(self, x):\n"
        "  h = torch.embedding(self.tokens, x)\n"
        "  return torch.linear(h + self.down.forward(self.up.forward(h)), self.head)\n");
    root_.save((dir_ / "net.pt").string());
    config_.data.batch_size = 2;
    for (int rank = 0; rank < 2; ++rank) {
      labels_.push_back(at::randint(kClasses, {kSamples, 3}, at::kLong));
      labels_.back()[0][1] = -100;
      testing::write_safetensors(data(rank), {{"input_ids", ids_}, {"labels", labels_.back()}});
    }
  }

  [[nodiscard]] std::string data(int rank) const {
    return (dir_ / (std::to_string(rank) + ".safetensors")).string();
  }

  /// The evaluation of the data of `rank`.
  [[nodiscard]] Evaluation evaluation(Group& world, int tp, int rank) const {
    ShardingOptions options;
    options.head_output = config_.model.output;
    options.tp_plan = {{"up", "colwise"}, {"down", "rowwise"}};
    ShardedModel model(ModelFile::open((dir_ / "net.pt").string()), options, at::kCPU,
                       MeshGroups::split(world, Mesh{1, 1, 1, tp}, 0));
    const Samples samples = Samples::open({"tensors", data(rank), 0, ""}, config_.model);
    return evaluate(model, config_, samples, Labels::kNextTokens, at::kCPU).value();
  }

  TempDir dir_;
  Module root_{"Net"};
  config::TrainingConfig config_;
  at::Tensor ids_ = at::randint(kClasses, {kSamples, 3}, at::kLong);
  std::vector<at::Tensor> labels_;
};

/// The ranks of tensor parallelism read other labels here, as if they had rounded otherwise. A process has
/// one model with operators of its own.
TEST_F(EvaluateTest, RanksOfTensorParallelismGetTheSameBits) {
  const auto file = [&](int rank) { return dir_ / ("found-" + std::to_string(rank)); };
  testing::on_forked_ranks(2, testing::test_port(), [&](Group& world) {
    const Evaluation found = evaluation(world, 2, world.rank());
    write_file_atomically(file(world.rank()), fmt::format("{:a} {:a} {:a}", found.loss,
                                                          found.accuracy.value(), found.perplexity.value()));
  });
  EXPECT_EQ(read_text_file(file(0)), read_text_file(file(1)));
}

/// Class 3 weighs nothing, and a batch may have no other label.
TEST_F(EvaluateTest, PerplexityIsThatOfTheLikelihoodAlone) {
  config_.model.class_weights.assign(kClasses, 2);
  config_.model.class_weights[3] = 0;
  config_.model.class_weights[5] = 0.5;
  config_.model.z_loss = 0.1;
  labels_[0].narrow(0, 2, 2).fill_(3);
  testing::write_safetensors(data(0), {{"input_ids", ids_}, {"labels", labels_[0]}});
  for (const char* fused : {"never", "always"}) {
    config_.model.fused_head = fused;
    // In a process of its own: threads of this one would be missing in the ranks that later tests fork.
    testing::on_forked_ranks(1, testing::test_port(), [&](Group& alone) {
      const at::Tensor logits =
          root_.forward({ids_}).toTensor().detach().view({-1, kClasses}).to(at::kDouble);
      const double expected = std::exp(at::cross_entropy_loss(logits, labels_[0].flatten()).item<double>());
      const Evaluation found = evaluation(alone, 1, 0);
      // Each of 14 logarithms has an error of some roundings of float32.
      EXPECT_NEAR(found.perplexity.value_or(0), expected, expected * 64 * 0x1p-23) << fused;
      EXPECT_NE(found.perplexity, std::exp(found.loss)) << fused;
    });
  }
}

}  // namespace
}  // namespace accel::train
