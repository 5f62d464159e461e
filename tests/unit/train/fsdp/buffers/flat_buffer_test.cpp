#include "train/fsdp/buffers/flat_buffer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "late_storage.hpp"
#include "lonely_backend.hpp"
#include "ranks_as_threads.hpp"
#include "test_port.hpp"

namespace accel::train {
namespace {

/// A matrix that is longer than a shard of 32 elements, and a vector. With three shards the last one is all
/// padding.
FlatLayout layout_over(const Mesh& mesh) {
  return make_flat_layout({{{"w"}, {5, 7}}, {{"b"}, {3}}}, 4, mesh);
}

std::shared_ptr<FlatBuffer> make_buffer(const Mesh& mesh, BufferDtypes dtypes = {}, bool trainable = true,
                                        std::shared_ptr<StorageDevice> storage = nullptr) {
  if (storage == nullptr) storage = StorageDevice::beside(at::kCPU);
  return std::make_shared<FlatBuffer>(layout_over(mesh), dtypes, trainable,
                                      BufferPool::make(at::kCPU, /*poison=*/true), std::move(storage));
}

/// Gives each element of the shard its index in the flat buffer.
void fill_shard(FlatBuffer& buffer, int shard) {
  const ElementRange range = buffer.layout().shard_range(shard);
  at::Tensor(buffer.shard()).copy_(at::arange(range.begin, range.end, at::kFloat));
}

/// What a parameter holds if each element of the flat buffer is its index.
at::Tensor indices_of(const FlatParameter& parameter) {
  return at::arange(parameter.offset, parameter.offset + parameter.numel, at::kFloat)
      .view(parameter.spec.shape);
}

Group alone() { return Group::connect({}, config::Backend::kAuto, at::kCPU); }

MeshGroups only(Group& group) { return {group, Mesh{}, nullptr, nullptr, nullptr}; }

void unshard(FlatBuffer& buffer, const MeshGroups& groups) {
  Gathers gathers;
  buffer.start_unshard(groups, gathers);
  gathers.start();
  buffer.finish_unshard();
}

void reduce(FlatBuffer& buffer, Group& shards) {
  buffer.start_reduce(shards);
  buffer.finish_reduce();
  buffer.finalize_gradient();
  buffer.release_reduced();
}

/// The reduced gradient of a parameter, where one rank has all of it.
at::Tensor gradient_of(const FlatBuffer& buffer, std::size_t index) {
  const FlatParameter& parameter = buffer.layout().parameters[index];
  return buffer.gradient().narrow(0, parameter.offset, parameter.numel).view(parameter.spec.shape);
}

template <class Call>
Error error_of_call(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::kWorker, "no error"};
}

/// The indices are small enough to be exact in bfloat16.
TEST(FlatBufferTest, ParametersAreGatheredFromTheShardsOfAllRanks) {
  const auto mixed = BufferDtypes{at::kFloat, at::kBFloat16, at::kFloat};
  testing::on_ranks(3, 3, testing::test_port(), [&](Group& world) {
    const MeshGroups groups = MeshGroups::split(world, {1, 3}, 0);
    const auto offloaded = std::make_shared<testing::LateStorage>();
    for (const auto& buffer :
         {make_buffer({1, 3}), make_buffer({1, 3}, mixed), make_buffer({1, 3}, {}, true, offloaded)}) {
      fill_shard(*buffer, world.rank());
      unshard(*buffer, groups);
      EXPECT_TRUE(buffer->is_unsharded());
      for (std::size_t i = 0; i < 2; ++i) {
        const at::Tensor values = buffer->parameters()[i].detach().to(at::kFloat);
        EXPECT_TRUE(values.equal(indices_of(buffer->layout().parameters[i]))) << i;
      }
    }
  });
}

TEST(FlatBufferTest, ParametersAreLeavesThatOnlyTrainablesWantGradientsFor) {
  for (const bool trainable : {true, false}) {
    const auto buffer = make_buffer({1, 2}, {}, trainable);
    EXPECT_EQ(buffer->trainable(), trainable);
    for (const at::Tensor& parameter : buffer->parameters()) {
      EXPECT_TRUE(parameter.is_leaf());
      EXPECT_EQ(parameter.requires_grad(), trainable);
    }
  }
}

TEST(FlatBufferTest, ReshardingFreesTheMemoryAndKeepsTheTensors) {
  const auto backend = c10::make_intrusive<LonelyBackend>(0, 2);
  Group world = Group::over(backend, at::kCPU);
  const MeshGroups groups = lonely_groups(world);
  const auto buffer = make_buffer(groups.mesh());
  const at::Tensor weight = buffer->parameters()[0];
  EXPECT_FALSE(buffer->is_unsharded());
  EXPECT_EQ(weight.storage().nbytes(), 0U);
  for (const float value : {1.0F, 2.0F}) {
    at::Tensor(buffer->shard()).fill_(value);
    unshard(*buffer, groups);
    unshard(*buffer, groups);  // It is gathered already.
    EXPECT_EQ(weight.storage().nbytes(), 64 * sizeof(float));
    EXPECT_TRUE(weight.eq(value).all().item<bool>());
    EXPECT_TRUE(weight.is_same(buffer->parameters()[0]));
    EXPECT_NO_THROW(buffer->require_unchanged());
    buffer->reshard();
    buffer->reshard();
    EXPECT_EQ(weight.storage().nbytes(), 0U);
    EXPECT_FALSE(buffer->is_unsharded());
  }
  EXPECT_EQ(backend->gathered, 2 * buffer->shard().nbytes());
}

/// NCCL gathers in place if a rank's part is where the output will have it. Another overlap is not allowed.
class InPlaceBackend final : public LonelyBackend {
 public:
  using LonelyBackend::LonelyBackend;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& options) override {
    EXPECT_EQ(in.data_ptr(), out.chunk(getSize()).at(static_cast<std::size_t>(getRank())).data_ptr());
    return LonelyBackend::_allgather_base(out, in, options);
  }
};

TEST(FlatBufferTest, SixteenBitParametersAreGatheredInSixteenBits) {
  const auto backend = c10::make_intrusive<InPlaceBackend>(1, 2);
  Group world = Group::over(backend, at::kCPU);
  const MeshGroups groups = lonely_groups(world);
  const auto buffer = make_buffer(groups.mesh(), {at::kFloat, at::kBFloat16, at::kFloat});
  at::Tensor(buffer->shard()).fill_(1.0F / 3);
  unshard(*buffer, groups);
  EXPECT_EQ(backend->gathered, buffer->shard().nbytes() / 2);
  EXPECT_EQ(buffer->dtype(), at::kFloat);
  EXPECT_TRUE(buffer->parameters()[0].detach().equal(at::full({5, 7}, 1.0F / 3, at::kBFloat16)));
  EXPECT_TRUE(buffer->shard().eq(1.0F / 3).all().item<bool>());
}

TEST(FlatBufferTest, WithOneShardTheParametersAreViewsOfIt) {
  Group group = alone();
  const MeshGroups groups = only(group);
  const auto buffer = make_buffer({});
  ASSERT_TRUE(buffer->is_alias());
  const at::NoGradGuard no_grad;
  const at::Tensor& weight = buffer->parameters()[0];
  at::Tensor(buffer->shard()).fill_(5);
  EXPECT_TRUE(weight.eq(5).all().item<bool>());
  unshard(*buffer, groups);
  weight.mul_(2);
  EXPECT_NO_THROW(buffer->require_unchanged());
  buffer->reshard();
  EXPECT_TRUE(weight.eq(10).all().item<bool>());
  EXPECT_TRUE(buffer->shard().narrow(0, 0, 35).eq(10).all().item<bool>());
  EXPECT_FALSE(buffer->frees_memory_of(weight));
}

/// Parameters of another dtype, and of an offloaded shard, are a copy also where there is one shard.
TEST(FlatBufferTest, AChangeOfACopyInPlaceIsAnErrorThatNamesTheParameter) {
  Group group = alone();
  const MeshGroups groups = only(group);
  for (const bool offloaded : {false, true}) {
    const auto buffer = offloaded ? make_buffer({}, {}, true, std::make_shared<testing::LateStorage>())
                                  : make_buffer({}, {at::kFloat, at::kBFloat16, at::kFloat});
    EXPECT_FALSE(buffer->is_alias());
    EXPECT_EQ(buffer->is_offloaded(), offloaded);
    fill_shard(*buffer, 0);
    unshard(*buffer, groups);
    const at::NoGradGuard no_grad;
    const at::Tensor& bias = buffer->parameters()[1];
    EXPECT_TRUE(bias.to(at::kFloat).equal(indices_of(buffer->layout().parameters[1])));
    EXPECT_TRUE(buffer->frees_memory_of(bias));
    EXPECT_TRUE(buffer->frees_memory_of(bias.slice(0, 1, 2)));
    EXPECT_FALSE(buffer->frees_memory_of(buffer->shard()));
    EXPECT_NO_THROW(buffer->require_unchanged());
    bias.slice(0, 1, 2).add_(1);
    const Error error = error_of_call([&] { buffer->require_unchanged(); });
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("'b'"), std::string::npos) << error.message();
    const Error other = error_of_call([&] { buffer->reshard_to(group); });
    EXPECT_EQ(other.message(), "no error");  // One shard has no reshard group.
  }
}

TEST(FlatBufferGradientTest, GradientsAddUpAndAllElseIsZero) {
  Group group = alone();
  const auto buffer = make_buffer({});
  const at::Tensor first = at::arange(35, at::kFloat).view({5, 7});
  // Rows 1 and 4, as an embedding with sparse=True has them.
  const at::Tensor second =
      at::sparse_coo_tensor(at::tensor({1, 4}, at::kLong).view({1, 2}), at::ones({2, 7}), {5, 7});
  buffer->add_gradient(0, first);
  EXPECT_FALSE(buffer->gradient().defined());
  buffer->add_gradient(0, second);
  reduce(*buffer, group);
  EXPECT_TRUE(gradient_of(*buffer, 0).equal(first + second.to_dense()));
  EXPECT_EQ(buffer->has_gradient(), (std::vector<bool>{true, false}));
  EXPECT_TRUE(gradient_of(*buffer, 1).eq(0).all().item<bool>());
  for (const ElementRange& gap : gaps_of(buffer->layout()))
    EXPECT_TRUE(buffer->gradient().narrow(0, gap.begin, gap.size()).eq(0).all().item<bool>()) << gap.begin;

  // The next step begins with no gradient.
  buffer->clear_gradient();
  EXPECT_FALSE(buffer->gradient().defined());
  buffer->add_gradient(1, at::ones({3}));
  reduce(*buffer, group);
  EXPECT_EQ(buffer->has_gradient(), (std::vector<bool>{false, true}));
  EXPECT_TRUE(gradient_of(*buffer, 0).eq(0).all().item<bool>());
}

TEST(FlatBufferGradientTest, OneThatComesAfterTheReductionIsAnErrorThatNamesTheParameter) {
  Group group = alone();
  const auto buffer = make_buffer({});
  buffer->add_gradient(0, at::ones({5, 7}));
  reduce(*buffer, group);
  const Error error = error_of_call([&] { buffer->add_gradient(1, at::ones({3})); });
  EXPECT_EQ(error.kind(), ErrorKind::kFailure);
  EXPECT_NE(error.message().find("'b'"), std::string::npos) << error.message();
}

TEST(FlatBufferGradientTest, TheMeanIsOverAllRanksAlsoThoseWithoutTheGradient) {
  testing::on_ranks(2, 2, testing::test_port(), [](Group& world) {
    const auto buffer = make_buffer({1, 2});
    const at::Tensor gradient = at::arange(35, at::kFloat).view({5, 7});
    if (world.rank() == 1) buffer->add_gradient(0, gradient);
    buffer->add_gradient(1, at::full({3}, world.rank() + 1.0));
    reduce(*buffer, world);
    EXPECT_EQ(buffer->has_gradient()[0], world.rank() == 1);
    for (const ShardPiece& piece : pieces_of(buffer->layout(), world.rank())) {
      const at::Tensor mean = piece.parameter == 0 ? gradient.flatten() / 2 : at::full({3}, 1.5);
      const at::Tensor expected = mean.narrow(0, piece.in_parameter.begin, piece.in_parameter.size());
      EXPECT_TRUE(buffer->gradient().narrow(0, piece.shard_offset, expected.numel()).equal(expected));
    }
  });
}

/// The sum of 1 and 2^-9 needs ten bits, and bfloat16 has eight.
TEST(FlatBufferGradientTest, IsReducedInItsDtypeAndHasThatOfTheShard) {
  Group group = alone();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto buffer = make_buffer({}, {at::kFloat, at::kBFloat16, dtype});
    buffer->add_gradient(1, at::full({3}, 1.0, at::kBFloat16));
    buffer->add_gradient(1, at::full({3}, 0x1p-9, at::kBFloat16));
    reduce(*buffer, group);
    EXPECT_EQ(buffer->gradient().scalar_type(), at::kFloat);
    const double sum = dtype == at::kFloat ? 1 + 0x1p-9 : 1;
    EXPECT_TRUE(gradient_of(*buffer, 1).eq(sum).all().item<bool>()) << dtype;
  }
}

/// The largest number of float16 is 65504.
TEST(FlatBufferGradientTest, AMeanInFloat16DoesNotOverflowWhereTheSumWould) {
  Group world = Group::over(c10::make_intrusive<FakeBackend>(0, 2), at::kCPU);
  const auto buffer = make_buffer({1, 2}, {at::kFloat, at::kHalf, at::kHalf});
  buffer->add_gradient(0, at::full({5, 7}, 60000.0, at::kHalf));
  reduce(*buffer, world);
  EXPECT_TRUE(buffer->gradient().eq(60000).all().item<bool>());
}

TEST(FlatBufferGradientTest, IsInTheOffloadedStorageAfterSynchronize) {
  Group group = alone();
  const auto storage = std::make_shared<testing::LateStorage>();
  const auto buffer = make_buffer({}, {}, true, storage);
  for (const double value : {1.0, 2.0}) {
    buffer->add_gradient(0, at::full({5, 7}, value));
    reduce(*buffer, group);
    storage->synchronize();
    EXPECT_TRUE(gradient_of(*buffer, 0).eq(value).all().item<bool>());
    EXPECT_TRUE(gradient_of(*buffer, 1).eq(0).all().item<bool>());
    buffer->clear_gradient();
  }
  EXPECT_EQ(storage->stored, 2);
}

TEST(FlatBufferTest, IsSpreadOverTheGroupWithAShardForEachRank) {
  Group one = alone();
  Group two = Group::over(c10::make_intrusive<FakeBackend>(0, 2), at::kCPU);
  EXPECT_TRUE(make_buffer({1, 2})->is_spread_over(two));
  EXPECT_TRUE(make_buffer({3, 2})->is_spread_over(two));
  EXPECT_FALSE(make_buffer({})->is_spread_over(two));  // Replicated parameters.
  EXPECT_FALSE(make_buffer({})->is_spread_over(one));
}

/// Each of its other ranks seems to have what this rank has. It coalesces, as NCCL does.
class CoalescingBackend final : public FakeBackend {
 public:
  using FakeBackend::FakeBackend;
  [[nodiscard]] bool supportsCoalescing() const override { return true; }
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outs, std::vector<at::Tensor>& ins,
      const c10d::AllgatherOptions& options) override {
    coalesced.push_back(outs.size());
    c10::intrusive_ptr<c10d::Work> work;
    for (std::size_t i = 0; i < outs.size(); ++i)
      work = FakeBackend::_allgather_base(outs[i], ins[i], options);
    return work;
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& options) override {
    coalesced.push_back(1);
    return FakeBackend::_allgather_base(out, in, options);
  }
  std::vector<std::size_t> coalesced;  ///< The tensors of each all-gather.
};

TEST(CoalescingTest, BuffersOfAUnitAreGatheredAtOnceAndEachIsWaitedForByItself) {
  const auto backend = c10::make_intrusive<CoalescingBackend>(0, 2);
  Group world = Group::over(backend, at::kCPU);
  const MeshGroups groups = lonely_groups(world);
  const auto trained = make_buffer({1, 2});
  const auto frozen = make_buffer({1, 2}, {at::kFloat, at::kBFloat16, at::kFloat}, /*trainable=*/false);
  const auto expected = [](const FlatBuffer& buffer) {
    return at::cat({buffer.shard(), buffer.shard()}).narrow(0, 0, 35).view({5, 7});
  };
  fill_shard(*trained, 0);
  fill_shard(*frozen, 1);
  Gathers gathers;
  trained->start_unshard(groups, gathers);
  frozen->start_unshard(groups, gathers);
  EXPECT_TRUE(backend->coalesced.empty());
  gathers.start();
  EXPECT_EQ(backend->coalesced, std::vector<std::size_t>{2});
  frozen->finish_unshard();
  trained->finish_unshard();
  EXPECT_TRUE(trained->parameters()[0].detach().equal(expected(*trained)));
  EXPECT_TRUE(frozen->parameters()[0].equal(expected(*frozen).to(at::kBFloat16)));
  unshard(*trained, groups);  // It is unsharded already.
  trained->reshard();
  unshard(*trained, groups);
  EXPECT_EQ(backend->coalesced, (std::vector<std::size_t>{2, 1}));
}

TEST(CoalescingTest, AnOffloadedBufferIsGatheredBehindItsOwnCopy) {
  const auto backend = c10::make_intrusive<CoalescingBackend>(0, 2);
  Group world = Group::over(backend, at::kCPU);
  const MeshGroups groups = lonely_groups(world);
  const auto storage = std::make_shared<testing::LateStorage>();
  const auto offloaded = make_buffer({1, 2}, {}, true, storage);
  const auto beside = make_buffer({1, 2});
  fill_shard(*offloaded, 0);
  fill_shard(*beside, 0);
  Gathers gathers;
  offloaded->start_unshard(groups, gathers);
  beside->start_unshard(groups, gathers);
  gathers.start();
  EXPECT_EQ(backend->coalesced, (std::vector<std::size_t>{1, 1}));
  offloaded->finish_unshard();
  beside->finish_unshard();
  EXPECT_TRUE(offloaded->parameters()[0].detach().equal(beside->parameters()[0].detach()));
}

}  // namespace
}  // namespace accel::train
