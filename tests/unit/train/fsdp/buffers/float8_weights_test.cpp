#include "train/fsdp/buffers/float8_weights.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cmath>
#include <memory>

#include "base/error.hpp"
#include "late_storage.hpp"
#include "ranks_as_threads.hpp"
#include "test_port.hpp"
#include "train/fsdp/buffers/flat_buffer.hpp"
#include "train/graph/run/float8_linear.hpp"

namespace accel::train {
namespace {

constexpr BufferDtypes kDtypes = {at::kFloat, at::kBFloat16, at::kFloat, /*gathers_float8=*/true};

/// A matrix whose rows are cut by shards, and one that lies in one shard.
FlatLayout layout_over(const Mesh& mesh) {
  return make_flat_layout({{{"w"}, {7, 48}}, {{"v"}, {3, 32}}}, 1, mesh);
}

std::shared_ptr<FlatBuffer> make_buffer(const Mesh& mesh, std::shared_ptr<StorageDevice> storage = nullptr) {
  if (storage == nullptr) storage = StorageDevice::beside(at::kCPU);
  return std::make_shared<FlatBuffer>(layout_over(mesh), kDtypes, /*trainable=*/true,
                                      BufferPool::make(at::kCPU, /*poison=*/true), std::move(storage));
}

/// The values of a parameter, whose largest one is in its last row.
at::Tensor values_of(const FlatParameter& parameter) {
  const at::Tensor count = at::arange(parameter.numel, at::kFloat);
  return (at::sin(count * 1.7) * (count + 1)).view(parameter.spec.shape);
}

void fill_shard(FlatBuffer& buffer, int shard, double factor = 1) {
  const FlatLayout& layout = buffer.layout();
  at::Tensor whole = at::full({layout.numel()}, 1e6, at::kFloat);  // Padding does not count.
  for (const FlatParameter& parameter : layout.parameters)
    whole.narrow(0, parameter.offset, parameter.numel).copy_(values_of(parameter).view(-1) * factor);
  at::Tensor(buffer.shard()).copy_(whole.narrow(0, shard * layout.shard_numel, layout.shard_numel));
}

void unshard(FlatBuffer& buffer, const MeshGroups& groups) {
  Gathers gathers;
  buffer.start_unshard(groups, gathers);
  gathers.start();
  buffer.finish_unshard();
}

void update_scales(const std::shared_ptr<FlatBuffer>& buffer, const MeshGroups& groups) {
  const std::vector<FlatBuffer*> buffers = {buffer.get()};
  update_float8_scales(buffers, groups.shard());
}

/// Compares what is gathered with a cast of the whole parameter, number by number.
void expect_cast(const FlatBuffer& buffer, double factor = 1) {
  for (std::size_t i = 0; i < buffer.layout().parameters.size(); ++i) {
    const at::Tensor values = values_of(buffer.layout().parameters[i]) * factor;
    const Float8Matrix& gathered = buffer.float8_weights()->gathered()[i];
    const double largest = values.abs().max().item<double>();
    EXPECT_FLOAT_EQ(gathered.scale.item<float>(), static_cast<float>(448 / largest)) << i;
    // float8_e4m3fn has 3 bits of mantissa, and its least normal number is 2^-6.
    const at::Tensor found = gathered.data.to(at::kFloat) / gathered.scale;
    const at::Tensor bound = values.abs() / 16 + largest / 448 / 512;
    EXPECT_TRUE((found - values).abs().le(bound * 1.001).all().item<bool>()) << i;
    EXPECT_EQ(gathered.data.to(at::kFloat).abs().max().item<float>(), 448) << i;
  }
}

TEST(Float8WeightsTest, EachRankCastsItsShardWithTheScaleOfTheWholeWeight) {
  testing::on_ranks(4, 4, testing::test_port(), [&](Group& world) {
    for (const Mesh& mesh : {Mesh{1, 4}, Mesh{2, 2}}) {
      const MeshGroups groups = MeshGroups::split(world, mesh, mesh.replicas() == 1 ? 2 : 0);
      for (const auto& storage : {StorageDevice::beside(at::kCPU),
                                  std::shared_ptr<StorageDevice>(std::make_shared<testing::LateStorage>())}) {
        const auto buffer = make_buffer(mesh, storage);
        fill_shard(*buffer, groups.place().shard);
        update_scales(buffer, groups);
        unshard(*buffer, groups);
        expect_cast(*buffer);
        if (groups.reshard() == nullptr) continue;
        buffer->reshard_to(*groups.reshard());
        unshard(*buffer, groups);
        expect_cast(*buffer);
      }
    }
  });
}

TEST(Float8WeightsTest, ScalesAreOutdatedUntilTheyFollowAChangeOfTheShard) {
  Group alone = Group::connect({}, config::Backend::kAuto, at::kCPU);
  const MeshGroups groups(alone, Mesh{}, nullptr, nullptr, nullptr);
  const auto buffer = make_buffer({});
  const auto expect_error = [&] {
    EXPECT_TRUE(buffer->float8_weights()->is_outdated());
    EXPECT_THROW(unshard(*buffer, groups), Error);
  };
  fill_shard(*buffer, 0);
  expect_error();
  update_scales(buffer, groups);
  unshard(*buffer, groups);
  expect_cast(*buffer);
  buffer->reshard();
  // What an optimizer's step does.
  fill_shard(*buffer, 0, 3);
  buffer->clear_gradient();
  expect_error();
  update_scales(buffer, groups);
  unshard(*buffer, groups);
  expect_cast(*buffer, 3);
}

TEST(Float8WeightsTest, AParameterWithoutMemoryGetsTheGradientOfItsLinear) {
  Group alone = Group::connect({}, config::Backend::kAuto, at::kCPU);
  const MeshGroups groups(alone, Mesh{}, nullptr, nullptr, nullptr);
  const auto buffer = make_buffer({});
  fill_shard(*buffer, 0);
  update_scales(buffer, groups);
  unshard(*buffer, groups);
  const at::Tensor leaf = buffer->parameters()[0];
  const Float8Matrix& gathered = buffer->float8_weights()->gathered()[0];
  EXPECT_EQ(leaf.storage().nbytes(), 0U);
  EXPECT_EQ(leaf.scalar_type(), at::kBFloat16);

  const at::Tensor input = at::randn({2, 5, 48}, at::kBFloat16);
  const auto run = [&](const at::Tensor& weight, const Float8Matrix& cast, bool frees) {
    const at::Tensor x = input.clone().set_requires_grad(true);
    const at::Tensor output = float8_linear(x, weight, {}, {}, cast);
    if (frees) {
      buffer->reshard();
      unshard(*buffer, groups);
    }
    output.sin().sum().backward();
    return std::vector{output.detach(), x.grad(), weight.grad().to(at::kFloat)};
  };
  const auto found = run(leaf, gathered, /*frees=*/true);
  // A weight that has these values casts itself to the same bytes.
  const at::Tensor plain = (gathered.data.to(at::kFloat) / gathered.scale).set_requires_grad(true);
  const auto expected = run(plain, {}, /*frees=*/false);
  EXPECT_EQ(leaf.grad().scalar_type(), at::kBFloat16);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;

  // Without rows there is no largest value, and no memory of the parameter is read either.
  const at::Tensor none = input.narrow(0, 0, 0).clone().set_requires_grad(true);
  const at::Tensor output = float8_linear(none, leaf, {}, {}, gathered);
  EXPECT_EQ(output.sizes(), (std::vector<std::int64_t>{0, 5, 7}));
  output.sum().backward();
  EXPECT_EQ(none.grad().numel(), 0);
}

}  // namespace
}  // namespace accel::train
