#include "ckpt/torch/sharded_tensor.hpp"

#include <gmock/gmock.h>

#include <set>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::Global;
using pickle::List;
using pickle::Tuple;
using pickle::Value;
using testing::error_of;
using ::testing::HasSubstr;

const std::string kModule = "torch.distributed._shard.sharded_tensor.api";

Value numbers(const Dims& values) {
  List list;
  for (const std::int64_t value : values) list.items.emplace_back(value);
  return list;
}

Value instance_of(const char* type, Dict members) {
  return pickle::instance(Global(kModule, type), std::move(members));
}

// A shard of a float32 tensor.
Value shard(const Dims& offsets, const Dims& sizes, const Dims& stored) {
  const Value place =
      instance_of("ShardMetadata", {{{"shard_offsets", numbers(offsets)}, {"shard_sizes", numbers(sizes)}}});
  return instance_of("Shard",
                     {{{"tensor", pickle_of_tensor(DType::kFloat32, stored, "0")}, {"metadata", place}}});
}

// The metadata of a tensor of which rank 1 has row 4, and an unknown rank row 3.
Value metadata_of(const Dims& shape) {
  const auto place = [&](std::int64_t row, const char* type, Dict members) {
    return instance_of("ShardMetadata", {{{"shard_offsets", numbers(Dims{row, 0})},
                                          {"shard_sizes", numbers(Dims{1, 3})},
                                          {"placement", instance_of(type, std::move(members))}}});
  };
  const List places{
      {place(3, "_remote_device", {{{"_worker_name", "w"}}}), place(4, "_remote_device", {{{"_rank", 1}}})}};
  return instance_of("ShardedTensorMetadata", {{{"size", numbers(shape)}, {"shards_metadata", places}}});
}

Value sharded(const Dims& shape, std::vector<Value> shards, const char* type = "ShardedTensor") {
  const Value group = instance_of("ProcessGroupState", {{{"global_world_size", 2}}});
  const Value state = Tuple{{List{std::move(shards)}, metadata_of(shape), group, pickle::None{}, false}};
  return pickle::reduce(
      Global("torch._tensor", "_rebuild_from_type_v2"),
      {Global("torch._utils", "_rebuild_wrapper_subclass"), Global(kModule, type), Tuple{}, state});
}

TEST(ShardedTensorTest, HasThePartsOfARank) {
  const std::optional<ShardedTensor> tensor =
      sharded_tensor_of(sharded({5, 3}, {shard({0, 0}, {2, 3}, {2, 3}), shard({4, 0}, {1, 3}, {1, 3})}));
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->shape, (Dims{5, 3}));
  EXPECT_EQ(tensor->ranks, 2);
  ASSERT_EQ(tensor->shards.size(), 2U);
  EXPECT_EQ(tensor->shards[1].first, (Box{{4, 0}, {1, 3}}));
  EXPECT_EQ(tensor->shards[1].second.shape, (Dims{1, 3}));
  EXPECT_TRUE(sharded_tensor_of(sharded({5, 3}, {})));  // A rank may have no part.
}

TEST(ShardedTensorTest, NamesTheRanksOfAbsentShards) {
  using Ranks = std::set<std::int64_t>;
  EXPECT_EQ(ranks_of_absent_shards(sharded({5, 3}, {shard({4, 0}, {1, 3}, {1, 3})})), Ranks{-1});
  EXPECT_EQ(ranks_of_absent_shards(sharded({5, 3}, {})), (Ranks{-1, 1}));
  // What is odd in the lists does not hide the rest.
  EXPECT_EQ(ranks_of_absent_shards(sharded({5, 3}, {7, instance_of("Shard", {{{"metadata", 1}}})})),
            (Ranks{-1, 1}));
  // Before torch 1.13 the class was not a tensor.
  const Value early = instance_of("ShardedTensor", {});
  EXPECT_FALSE(ranks_of_absent_shards(early));
  EXPECT_EQ(ranks_of_absent_shards(pickle::instance(Global(kModule, "ShardedTensor"),
                                                    Tuple{{List{}, metadata_of({5, 3}), pickle::None{}}})),
            (Ranks{-1, 1}));
  EXPECT_FALSE(ranks_of_absent_shards(3));
}

TEST(ShardedTensorTest, OtherValuesAreNone) {
  EXPECT_FALSE(sharded_tensor_of(3));
  EXPECT_FALSE(sharded_tensor_of(pickle_of_tensor(DType::kFloat32, {2}, "0")));
  EXPECT_FALSE(sharded_tensor_of(sharded({5}, {}, "DTensor")));
}

TEST(ShardedTensorTest, WhatContradictsItselfIsCorrupt) {
  const auto rejection = [](const Dims& shape, const Value& one) {
    return error_of(ErrorKind::kCorrupt, [&] { (void)sharded_tensor_of(sharded(shape, {one})); });
  };
  EXPECT_THAT(rejection({5, 3}, shard({4, 0}, {2, 3}, {2, 3})),
              HasSubstr("does not lie within shape [5, 3]"));
  EXPECT_THAT(rejection({5, 3}, shard({0, 0}, {2, 3}, {3, 2})),
              HasSubstr("is [3, 2], but its place says [2, 3]"));
  EXPECT_THAT(rejection({5, 3}, shard({0}, {2}, {2})), HasSubstr("another number of dimensions"));
  EXPECT_THAT(rejection({5}, 7), HasSubstr("a shard of a ShardedTensor is"));
  EXPECT_THAT(rejection({5}, instance_of("Shard", {{{"metadata", 1}}})), HasSubstr("has no 'tensor'"));
}

}  // namespace
}  // namespace accel::ckpt
