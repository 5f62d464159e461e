// Compares the bytes that the plan says a rank sends with the bytes that ranks write into sockets.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/csrc/jit/api/module.h>
#include <unistd.h>

#include "plan/model_plan.hpp"
#include "socket_ring.hpp"
#include "temp_dir.hpp"
#include "train/fsdp/sharded_model.hpp"

namespace accel::train {
namespace {

using accel::testing::TempDir;
using torch::jit::Module;

constexpr int kSteps = 2;

Module net() {
  Module root("Net");
  root.register_parameter("first", at::randn({50, 8}).set_requires_grad(true), false);
  std::string body = "def forward(self, x):\n  x = x @ self.first\n";
  for (const char* name : {"a", "b", "c"}) {
    Module block("Block");
    block.register_parameter("weight", at::randn({8, 8}).set_requires_grad(true), false);
    block.register_parameter("bias", at::randn({8}).set_requires_grad(true), false);
    block.register_parameter("frozen", at::ones({8}), false);
    block.define(
        "def forward(self, x):\n  return x + torch.tanh(x @ self.weight + self.bias) * self.frozen\n");
    root.register_module(name, block);
    body += std::string("  x = self.") + name + ".forward(x)\n";
  }
  root.define(body + "  return x.sum()\n");
  return root;
}

struct Case {
  const char* name;
  int world_size = 2;
  int replicas = 1;
  int reshard_size = 0;
  bool reshard = true;
  bool recompute = false;
  std::int64_t micro_batches = 1;
  config::PrecisionConfig precision = {};
};

struct Sent {
  std::size_t gathered = 0;
  std::size_t reduced = 0;
  std::size_t averaged = 0;
};

config::Config config_of(const Case& tested) {
  config::Config config;
  config.launch.num_processes = tested.world_size;
  config.fsdp.version = 2;
  config.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformer;
  config.fsdp.transformer_layer_cls_to_wrap = {"Block"};
  config.fsdp.replicate_size = tested.replicas;
  config.fsdp.reshard_size = tested.reshard_size;
  config.fsdp.reshard_after_forward = tested.reshard;
  config.fsdp.activation_checkpointing = tested.recompute;
  config.fsdp.forward_prefetch = true;
  config.fsdp.backward_prefetch = true;
  config.fsdp.precision = tested.precision;
  config.training.emplace();
  config.training->gradient_accumulation_steps = tested.micro_batches;
  return config;
}

/// A group of `members` in the process of rank `rank`.
class Ring {
 public:
  explicit Ring(std::vector<int> members)
      : members_(std::move(members)), ends_(SocketRing::connect(members_)) {}

  c10::intrusive_ptr<SocketRing> of(int rank) const {
    const auto place = std::find(members_.begin(), members_.end(), rank) - members_.begin();
    return c10::make_intrusive<SocketRing>(static_cast<int>(place), static_cast<int>(members_.size()),
                                           ends_.at(rank));
  }

 private:
  std::vector<int> members_;
  std::map<int, SocketRing::Ends> ends_;
};

std::unique_ptr<Group> over(const c10::intrusive_ptr<SocketRing>& ring) {
  return std::make_unique<Group>(Group::over(ring, at::kCPU));
}

/// Runs the steps of one rank.
Sent train(const std::filesystem::path& file, const config::Config& config, const Mesh& mesh, int rank,
           const std::map<std::vector<int>, Ring>& rings) {
  const auto all = rings.at(mesh.group(rank, Axis::kDpShard)).of(rank);
  const auto replicate = rings.at(mesh.group(rank, Axis::kDpReplicate)).of(rank);
  std::vector<int> world;
  for (int member = 0; member < mesh.size(); ++member) world.push_back(member);
  const auto everyone = rings.at(world).of(rank);
  Group whole = Group::over(everyone, at::kCPU);
  c10::intrusive_ptr<SocketRing> reshard;
  if (config.fsdp.reshard_size > 0)
    reshard = rings.at(mesh.reshard_group(rank, config.fsdp.reshard_size)).of(rank);
  MeshGroups groups(whole, mesh, over(all), over(replicate), reshard ? over(reshard) : nullptr);
  ShardingOptions options;
  options.fsdp = config.fsdp;
  ShardedModel model(ModelFile::open(file), options, at::kCPU, std::move(groups));
  for (int step = 0; step < kSteps; ++step) {
    model.clear_gradients();
    for (std::int64_t i = 1; i <= config.training->gradient_accumulation_steps; ++i) {
      model.begin_micro_batch(i == config.training->gradient_accumulation_steps);
      model.forward({at::randn({3, 50})}).toTensor().backward();
      model.finish_backward();
    }
  }
  return {all->gathered + (reshard ? reshard->gathered : 0), all->reduced,
          replicate->averaged + everyone->averaged};
}

class SentBytesTest : public ::testing::TestWithParam<Case> {};

TEST_P(SentBytesTest, AreThoseOfThePlan) {
  const Case& tested = GetParam();
  const TempDir dir;
  net().save((dir / "net.pt").string());
  const config::Config config = config_of(tested);
  const ArchiveModel archive = ArchiveModel::open(dir / "net.pt");
  const Footprint planned = footprint_of(archive, plan_model(archive, config), config);

  const Mesh mesh{tested.replicas, tested.world_size / tested.replicas};
  std::map<std::vector<int>, Ring> rings;
  const auto add = [&](const std::vector<int>& members) { rings.try_emplace(members, members); };
  std::vector<int> world;
  for (int rank = 0; rank < mesh.size(); ++rank) world.push_back(rank);
  add(world);
  for (const int rank : world) {
    add(mesh.group(rank, Axis::kDpShard));
    add(mesh.group(rank, Axis::kDpReplicate));
    if (tested.reshard_size > 0) add(mesh.reshard_group(rank, tested.reshard_size));
  }

  std::vector<std::pair<pid_t, int>> children;
  for (const int rank : world) {
    std::array<int, 2> result{};
    ASSERT_EQ(::pipe(result.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Sent sent = train(dir / "net.pt", config, mesh, rank, rings);
      ::_exit(::write(result[1], &sent, sizeof sent) == sizeof sent ? 0 : 1);
    }
    ::close(result[1]);
    children.emplace_back(child, result[0]);
  }
  for (const auto& [child, result] : children) {
    Sent sent;
    EXPECT_EQ(::read(result, &sent, sizeof sent), static_cast<ssize_t>(sizeof sent));
    ::close(result);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(sent.gathered, kSteps * planned.gather_bytes);
    EXPECT_EQ(sent.reduced, kSteps * planned.reduce_bytes);
    EXPECT_EQ(sent.averaged, kSteps * planned.average_bytes);
    EXPECT_GT(sent.gathered + sent.averaged, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SentBytesTest,
    ::testing::Values(Case{"two"}, Case{"three", 3},
                      Case{.name = "four_accumulated", .world_size = 4, .micro_batches = 3},
                      Case{.name = "kept", .reshard = false}, Case{.name = "recomputed", .recompute = true},
                      Case{.name = "resharded_to_two", .world_size = 4, .reshard_size = 2},
                      Case{.name = "replicated", .world_size = 2, .replicas = 2},
                      Case{.name = "two_by_two", .world_size = 4, .replicas = 2},
                      Case{
                          .name = "mixed", .world_size = 4, .precision = {"bfloat16", "float32", "bfloat16"}},
                      Case{.name = "mixed_two_by_two",
                           .world_size = 4,
                           .replicas = 2,
                           .precision = {"bfloat16", "bfloat16", "bfloat16"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace accel::train
