#include "train/optim/optimizer.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ranks_as_threads.hpp"
#include "test_port.hpp"
#include "train/c10d/fake_backend.hpp"

namespace accel::train {
namespace {

constexpr double kDecay = 0.5;

config::OptimizerConfig adamw() {
  config::OptimizerConfig config;
  config.lr = 1;  // So that the factor of a step is its learning rate.
  config.options.betas = {0.8, 0.9};
  config.options.eps = 1e-6;
  config.options.weight_decay = kDecay;
  config.no_decay = {"bias"};
  return config;
}

/// Two parameters with weight decay and two without. None of their sizes fills a 64-byte line.
std::vector<ParameterSpec> specs() {
  return {{{"a"}, {5, 7}}, {{"bias_a"}, {3}, 1}, {{"b"}, {11}}, {{"bias_b"}, {2, 2}, 1}};
}

at::Tensor part(const at::Tensor& flat, const ShardPiece& piece) {
  return flat.narrow(0, piece.shard_offset, piece.in_parameter.size());
}

/// The parameters of specs() in a flat buffer, as the rank `shard` of `mesh.shards()` ranks has them.
class Shard {
 public:
  Shard(const Mesh& mesh, int shard, const std::map<std::string, at::Tensor>& values)
      : group_(Group::over(c10::make_intrusive<FakeBackend>(shard, mesh.shards()), at::kCPU)),
        number_(shard),
        buffer_(make_flat_layout(specs(), 4, mesh), BufferDtypes::all(at::kFloat), /*trainable=*/true,
                BufferPool::make(at::kCPU, /*poison=*/true), StorageDevice::beside(at::kCPU)) {
    for (const ShardPiece& piece : pieces()) part(buffer_.shard(), piece).copy_(slice(values, piece));
  }

  FlatBuffer& buffer() { return buffer_; }
  [[nodiscard]] std::vector<ShardPiece> pieces() const { return pieces_of(buffer_.layout(), number_); }
  [[nodiscard]] const std::string& name(const ShardPiece& piece) const {
    return buffer_.layout().parameters[piece.parameter].spec.fqns.front();
  }
  /// The elements of a piece in the tensors of whole parameters, by name.
  [[nodiscard]] at::Tensor slice(const std::map<std::string, at::Tensor>& whole,
                                 const ShardPiece& piece) const {
    return whole.at(name(piece)).flatten().narrow(0, piece.in_parameter.begin, piece.in_parameter.size());
  }

  /// Gives the buffer these gradients. A name that is missing is a parameter without a gradient.
  void set_gradients(const std::map<std::string, at::Tensor>& gradients) {
    buffer_.clear_gradient();
    const std::vector<FlatParameter>& parameters = buffer_.layout().parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = gradients.find(parameters[i].spec.fqns.front());
      if (found != gradients.end()) buffer_.add_gradient(i, found->second);
    }
    buffer_.start_reduce(group_);
    buffer_.finish_reduce();
    buffer_.finalize_gradient();
  }

 private:
  Group group_;
  int number_;
  FlatBuffer buffer_;
};

std::map<std::string, at::Tensor> random_tensors(std::uint64_t seed,
                                                 const std::set<std::string>& without = {}) {
  at::manual_seed(seed);
  std::map<std::string, at::Tensor> tensors;
  for (const ParameterSpec& spec : specs()) {
    const at::Tensor tensor = at::randn(spec.shape);
    if (!without.contains(spec.fqns.front())) tensors[spec.fqns.front()] = tensor;
  }
  return tensors;
}

/// torch::optim::AdamW on the same parameters, in float64.
class Peer {
 public:
  explicit Peer(const std::map<std::string, at::Tensor>& values)
      : optimizer_(groups(values), options(kDecay)) {}

  void step(double lr, const std::map<std::string, at::Tensor>& gradients) {
    for (auto& [name, parameter] : parameters_) {
      const auto found = gradients.find(name);
      parameter.mutable_grad() = found == gradients.end() ? at::Tensor() : found->second.to(at::kDouble);
    }
    for (auto& group : optimizer_.param_groups()) group.options().set_lr(lr);
    optimizer_.step();
  }
  [[nodiscard]] std::map<std::string, at::Tensor> values() const {
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, parameter] : parameters_) values[name] = parameter.detach();
    return values;
  }
  /// A moment by torch's name. A parameter that has had no gradient has none.
  [[nodiscard]] std::map<std::string, at::Tensor> moments(std::string_view moment) {
    std::map<std::string, at::Tensor> moments;
    for (const auto& [name, parameter] : parameters_) {
      const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer_.state().end()) continue;
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
      moments[name] = moment == "exp_avg" ? state.exp_avg() : state.exp_avg_sq();
    }
    return moments;
  }

 private:
  static torch::optim::AdamWOptions options(double decay) {
    return torch::optim::AdamWOptions(0).betas({0.8, 0.9}).eps(1e-6).weight_decay(decay);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups(const std::map<std::string, at::Tensor>& values) {
    std::vector<at::Tensor> decayed;
    std::vector<at::Tensor> others;
    for (const auto& [name, value] : values) {
      parameters_[name] = value.to(at::kDouble).requires_grad_();
      (name.starts_with("bias") ? others : decayed).push_back(parameters_[name]);
    }
    return {{decayed, std::make_unique<torch::optim::AdamWOptions>(options(kDecay))},
            {others, std::make_unique<torch::optim::AdamWOptions>(options(0))}};
  }

  std::map<std::string, at::Tensor> parameters_;
  torch::optim::AdamW optimizer_;
};

/// Each step rounds fewer than 16 float32 numbers, none of which is larger than 8 here.
void expect_near(const Shard& shard, const at::Tensor& flat,
                 const std::map<std::string, at::Tensor>& expected, int steps) {
  const double bound = steps * 16.0 * 8.0 * std::numeric_limits<float>::epsilon();
  for (const ShardPiece& piece : shard.pieces()) {
    const at::Tensor difference = part(flat, piece).to(at::kDouble) - shard.slice(expected, piece);
    EXPECT_LT(difference.abs().max().item<double>(), bound) << shard.name(piece);
  }
}

/// A tensor of the states of all groups of one buffer, as long as the shard.
at::Tensor flat(const Optimizer& optimizer, std::size_t tensor) {
  std::vector<at::Tensor> parts;
  for (const OptimizerState& state : optimizer.states()) parts.push_back(state.tensors[tensor]);
  return at::cat(parts);
}

class OptimizerTest : public ::testing::TestWithParam<int> {};

TEST_P(OptimizerTest, StepsAreThoseOfLibtorchsAdamWOnEachShard) {
  const auto values = random_tensors(1);
  for (int number = 0; number < GetParam(); ++number) {
    Shard shard(Mesh{1, GetParam()}, number, values);
    Optimizer optimizer(OptimizerPlan(adamw()), {&shard.buffer()}, number);
    Peer peer(values);
    for (int step = 1; step <= 4; ++step) {
      const auto gradients = random_tensors(10 + static_cast<std::uint64_t>(step));
      shard.set_gradients(gradients);
      optimizer.step(0.1 / step);
      peer.step(0.1 / step, gradients);
      expect_near(shard, shard.buffer().shard(), peer.values(), step);
    }
    EXPECT_EQ(optimizer.steps(), 4);
    expect_near(shard, flat(optimizer, 0), peer.moments("exp_avg"), 4);
    expect_near(shard, flat(optimizer, 1), peer.moments("exp_avg_sq"), 4);
  }
}

TEST_P(OptimizerTest, AParameterWithoutAGradientStaysAndCountsItsOwnSteps) {
  const auto values = random_tensors(2);
  const std::set<std::string> none = {"b", "bias_b"};
  for (int number = 0; number < GetParam(); ++number) {
    Shard shard(Mesh{1, GetParam()}, number, values);
    Optimizer optimizer(OptimizerPlan(adamw()), {&shard.buffer()}, number);
    Peer peer(values);
    for (int step = 1; step <= 4; ++step) {
      const bool all = step % 2 == 0;
      const auto gradients =
          random_tensors(20 + static_cast<std::uint64_t>(step), all ? std::set<std::string>{} : none);
      shard.set_gradients(gradients);
      optimizer.step(0.05);
      peer.step(0.05, gradients);
      expect_near(shard, shard.buffer().shard(), peer.values(), step);
      if (step > 1) continue;
      for (const ShardPiece& piece : shard.pieces()) {
        if (!none.contains(shard.name(piece))) continue;
        EXPECT_TRUE(part(shard.buffer().shard(), piece).equal(shard.slice(values, piece)));
        for (const std::size_t i : {0, 1})
          EXPECT_TRUE(part(flat(optimizer, i), piece).eq(0).all().item<bool>());
      }
    }
    // The layout has the parameters with weight decay first: a, b, bias_a, bias_b. The steps of a parameter
    // are counted on all ranks, whether they have a part of it or not.
    ASSERT_EQ(optimizer.states().size(), 2U);
    for (const OptimizerState& state : optimizer.states())
      EXPECT_EQ(state.steps, (std::vector<std::int64_t>{4, 2}));
    EXPECT_EQ(optimizer.parameter_steps(), 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, OptimizerTest, ::testing::Values(1, 2, 3));

/// The gradients of other ranks count, too: this rank's own has_gradient() does not decide.
TEST(OptimizerPresenceTest, SaysWhichParametersChange) {
  const auto values = random_tensors(3);
  Shard shard(Mesh{}, 0, values);
  Optimizer optimizer(OptimizerPlan(adamw()), {&shard.buffer()}, 0);
  Peer peer(values);
  auto gradients = random_tensors(4);
  shard.set_gradients(gradients);
  optimizer.step(0.1, {{true, false, true, true}});
  gradients.erase("b");
  peer.step(0.1, gradients);

  // A parameter that has its gradient elsewhere has zeros here. It changes by its decay and its moments.
  auto here = random_tensors(5);
  here.erase("a");
  shard.set_gradients(here);
  optimizer.step(0.1, {{true, true, true, true}});
  here["a"] = at::zeros({5, 7});
  peer.step(0.1, here);
  expect_near(shard, shard.buffer().shard(), peer.values(), 2);
}

TEST(OptimizerReplicatedTest, EveryRankChangesAllElementsWhateverItsShardIs) {
  const auto values = random_tensors(6);
  Shard shard(Mesh{}, 0, values);
  Optimizer optimizer(OptimizerPlan(adamw()), {&shard.buffer()}, /*shard=*/2);
  Peer peer(values);
  const auto gradients = random_tensors(7);
  shard.set_gradients(gradients);
  optimizer.step(0.1);
  peer.step(0.1, gradients);
  expect_near(shard, shard.buffer().shard(), peer.values(), 1);
}

TEST(OptimizerPaddingTest, StaysZero) {
  Shard shard(Mesh{}, 0, random_tensors(8));
  Optimizer optimizer(OptimizerPlan(adamw()), {&shard.buffer()}, 0);
  for (std::uint64_t step = 0; step < 2; ++step) {
    shard.set_gradients(random_tensors(step));
    optimizer.step(0.1);
  }
  const std::vector<ElementRange> gaps = gaps_of(shard.buffer().layout());
  ASSERT_FALSE(gaps.empty());
  for (const at::Tensor& tensor : {flat(optimizer, 0), flat(optimizer, 1), shard.buffer().shard()}) {
    for (const ElementRange& gap : gaps)
      EXPECT_TRUE(tensor.narrow(0, gap.begin, gap.size()).eq(0).all().item<bool>()) << gap.begin;
  }
}

TEST(OptimizerRestoreTest, ARunThatResumesMakesTheSameStepBitForBit) {
  const auto values = random_tensors(9);
  Shard shard(Mesh{}, 0, values);
  Optimizer optimizer(OptimizerPlan(adamw()), {&shard.buffer()}, 0);
  for (std::uint64_t step = 0; step < 3; ++step) {
    shard.set_gradients(
        random_tensors(step, step == 0 ? std::set<std::string>{"a"} : std::set<std::string>{}));
    optimizer.step(0.1);
  }

  Shard resumed_shard(Mesh{}, 0, values);
  at::Tensor(resumed_shard.buffer().shard()).copy_(shard.buffer().shard());
  Optimizer resumed(OptimizerPlan(adamw()), {&resumed_shard.buffer()}, 0);
  for (std::size_t group = 0; group < 2; ++group) {
    for (std::size_t i = 0; i < 2; ++i)
      at::Tensor(resumed.states()[group].tensors[i]).copy_(optimizer.states()[group].tensors[i]);
  }
  resumed.restore_steps(optimizer.steps(), {optimizer.states()[0].steps, optimizer.states()[1].steps});
  EXPECT_EQ(resumed.steps(), 3);
  EXPECT_EQ(resumed.parameter_steps(), 3);

  for (const auto& [runs, on] : {std::pair{&optimizer, &shard}, std::pair{&resumed, &resumed_shard}}) {
    on->set_gradients(random_tensors(50));
    runs->step(0.1);
  }
  EXPECT_TRUE(resumed_shard.buffer().shard().equal(shard.buffer().shard()));
  EXPECT_EQ(resumed.states()[0].steps, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(resumed.states()[1].steps, (std::vector<std::int64_t>{4, 4}));
  EXPECT_EQ(resumed.steps(), 4);
}

/// One replica is on one machine, and its ranks add through shared memory. The other is on two, and Gloo adds
/// in another order. In float64 the sums of the squares would differ in their last bits.
TEST(OptimizerReplicasTest, AdafactorGivesReplicasTheSameBits) {
  const Mesh mesh{2, 3};
  std::vector<at::Tensor> shards(static_cast<std::size_t>(mesh.size()));
  testing::on_ranks(mesh.size(), 4, testing::test_port(), [&](Group& world) {
    const MeshGroups groups = MeshGroups::split(world, mesh, 0);
    FlatBuffer buffer(make_flat_layout({{{"a"}, {301, 200}}}, 4, mesh), BufferDtypes::all(at::kFloat),
                      /*trainable=*/true, BufferPool::make(at::kCPU, /*poison=*/true),
                      StorageDevice::beside(at::kCPU));
    const int shard = groups.place().shard;
    Optimizer optimizer(OptimizerPlan({.type = "adafactor"}), {&buffer}, shard, &groups);
    const auto random = [&](int seed) {
      return at::randn({301, 200}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
    };
    const auto fill = [&](const at::Tensor& flat, int seed) {
      for (const ShardPiece& piece : pieces_of(buffer.layout(), shard)) {
        const ElementRange& range = piece.in_parameter;
        part(flat, piece).copy_(random(seed).flatten().narrow(0, range.begin, range.size()));
      }
    };
    fill(buffer.shard(), 1);
    for (int step = 0; step < 3; ++step) {
      buffer.clear_gradient();
      buffer.add_gradient(0, random(0));
      buffer.start_reduce(groups.shard());
      buffer.finish_reduce();
      buffer.finalize_gradient();
      fill(buffer.gradient(), 2 + step);
      optimizer.step(1, {{true}});
    }
    shards[static_cast<std::size_t>(world.rank())] = buffer.shard().clone();
    groups.shut_down();
  });
  for (std::size_t shard = 0; shard < 3; ++shard)
    EXPECT_TRUE(shards[shard].equal(shards[3 + shard])) << shard;
}

/// A save copies what is about to change. States that do not change need no copy.
TEST(OptimizerBeforeChangeTest, IsCalledForEachStateThatChangesBeforeTheFirstChange) {
  const auto values = random_tensors(11);
  Shard first(Mesh{}, 0, values);
  Shard idle(Mesh{}, 0, values);
  Shard last(Mesh{}, 0, values);
  Optimizer optimizer(OptimizerPlan(adamw()), {&first.buffer(), &idle.buffer(), &last.buffer()}, 0);
  const auto gradients = random_tensors(12);
  first.set_gradients(gradients);
  idle.set_gradients({});
  last.set_gradients(gradients);
  const at::Tensor before = first.buffer().shard().clone();
  std::vector<const FlatBuffer*> called;
  optimizer.call_before_change([&](const Optimizer::State& state) {
    if (called.empty() || called.back() != state.buffer) called.push_back(state.buffer);
    for (Shard* shard : {&first, &last}) EXPECT_TRUE(shard->buffer().shard().equal(before));
    for (const Optimizer::State& other : optimizer.states()) {
      for (const at::Tensor& tensor : other.tensors) EXPECT_TRUE(tensor.eq(0).all().item<bool>());
    }
  });
  optimizer.step(0.1);
  EXPECT_EQ(called, (std::vector<const FlatBuffer*>{&first.buffer(), &last.buffer()}));
  EXPECT_FALSE(first.buffer().shard().equal(before));
  optimizer.call_before_change({});
  optimizer.step(0.1);
  EXPECT_EQ(called.size(), 2U);
}

}  // namespace
}  // namespace accel::train
