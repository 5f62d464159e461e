#include "train/optim/equal_along_tp.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ranks_as_threads.hpp"
#include "test_port.hpp"

namespace accel::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kTp = 3;

std::vector<ParameterSpec> whole() {
  return {{.fqns = {"a"}, .shape = {20, 7}}, {.fqns = {"b"}, .shape = {5}}};
}
/// Of `c`, ranks have a part each.
std::vector<ParameterSpec> cut(int tp) {
  return {{.fqns = {"c"},
           .shape = {4, 7},
           .part = TensorPart{.dim = 0, .begin = 4 * tp, .size = 4, .whole = 4 * kTp}}};
}

/// What the gradient of a parameter is multiplied by on the rank `tp`; 1 for names that are not there.
using Factors = std::map<std::string, std::function<double(int tp)>>;

/// The buffer of a rank, with gradients that are the same on all ranks but for `factors`.
std::unique_ptr<FlatBuffer> with_gradients(std::vector<ParameterSpec> parameters, const MeshGroups& groups,
                                           const Factors& factors) {
  auto buffer = std::make_unique<FlatBuffer>(
      make_flat_layout(std::move(parameters), 4, groups.mesh()), BufferDtypes::all(at::kFloat),
      /*trainable=*/true, BufferPool::make(at::kCPU, /*poison=*/true), StorageDevice::beside(at::kCPU));
  for (std::size_t i = 0; i < buffer->layout().parameters.size(); ++i) {
    const FlatParameter& parameter = buffer->layout().parameters[i];
    const auto factor = factors.find(parameter.spec.fqns.front());
    const at::Tensor gradient = (at::arange(parameter.numel, at::kFloat) + 1).view(parameter.spec.shape);
    buffer->add_gradient(i,
                         factor == factors.end() ? gradient : gradient * factor->second(groups.place().tp));
  }
  buffer->start_reduce(groups.shard());
  buffer->finish_reduce();
  buffer->finalize_gradient();
  buffer->release_reduced();
  return buffer;
}

/// What each rank of a mesh with `shards` says; empty for those that found all gradients equal.
std::vector<std::string> said_by_ranks(const Factors& factors, int shards = 1, int tp = kTp) {
  std::vector<std::string> said;
  const auto check = [&](Group& world) {
    const MeshGroups groups = MeshGroups::split(world, {1, shards, 1, tp}, 0);
    const auto first = with_gradients(whole(), groups, factors);
    const auto second = with_gradients(cut(groups.place().tp), groups, factors);
    std::string text;
    try {
      require_equal_along_tp({first.get(), second.get()}, groups);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      text = error.message();
    }
    for (const std::string& one : world.all_gather_object(text)) {
      if (world.rank() == 0) said.push_back(one);
    }
    world.barrier();
  };
  testing::on_ranks(shards * tp, shards * tp, testing::test_port(), check);
  EXPECT_EQ(said.size(), static_cast<std::size_t>(shards * tp));
  return said;
}

TEST(EqualAlongTpTest, EqualGradientsPass) {
  EXPECT_THAT(said_by_ranks({}), Each(IsEmpty()));
  EXPECT_THAT(said_by_ranks({}, 2), Each(IsEmpty()));
}

TEST(EqualAlongTpTest, OneThatDiffersIsNamedByEveryRank) {
  const auto grows = [](int tp) { return 1 + 0.01 * tp; };
  EXPECT_THAT(said_by_ranks({{"b", grows}}),
              Each(AllOf(HasSubstr("the gradient of 'b', which tensor parallelism does not cut, differs"),
                         Not(HasSubstr("other parameters")))));
  EXPECT_THAT(
      said_by_ranks({{"a", grows}, {"b", grows}}),
      Each(AllOf(HasSubstr("the gradient of 'a'"), HasSubstr("and so do those of 1 other parameters"))));
  // Two ranks have no gradient.
  EXPECT_THAT(said_by_ranks({{"b", [](int tp) { return tp == 1 ? 1.0 : 0.0; }}}),
              Each(HasSubstr("the gradient of 'b'")));
}

TEST(EqualAlongTpTest, WhatRoundingDoesPasses) {
  // The square of the norm differs by twice as much. Sums of float32 in another order are this close.
  EXPECT_THAT(said_by_ranks({{"a", [](int tp) { return 1 + 1e-6 * tp; }}}), Each(IsEmpty()));
  // A gradient that is 0 but for rounding differs in each digit: that of a bias of keys.
  EXPECT_THAT(said_by_ranks({{"b", [](int tp) { return 1e-6 * (tp + 1); }}}), Each(IsEmpty()));
}

TEST(EqualAlongTpTest, WhatIsCutIsNotCompared) {
  EXPECT_THAT(said_by_ranks({{"c", [](int tp) { return tp + 1.0; }}}), Each(IsEmpty()));
}

// The first shard has a part of `a`, and the second one the rest and `b`.
TEST(EqualAlongTpTest, EachShardComparesItsOwnPieces) {
  const std::vector<std::string> said = said_by_ranks({{"b", [](int tp) { return 1 + 0.01 * tp; }}}, 2, 2);
  for (const std::size_t rank : {0, 1}) EXPECT_THAT(said.at(rank), IsEmpty());
  for (const std::size_t rank : {2, 3}) EXPECT_THAT(said.at(rank), HasSubstr("the gradient of 'b'"));
}

TEST(EqualAlongTpTest, ARankAloneHasNothingToCompare) {
  EXPECT_THAT(said_by_ranks({{"a", [](int) { return 2.0; }}}, 2, 1), Each(IsEmpty()));
}

}  // namespace
}  // namespace accel::train
