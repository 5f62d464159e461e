#include "ckpt/torch/dtensor.hpp"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "dtensor_values.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::Global;
using pickle::Tuple;
using pickle::Value;
using testing::dtensor_with;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::instance_in;
using testing::kRows;
using testing::mesh_211;
using testing::placement;
using testing::view_of;

TEST(DTensorTest, IsReadFromTheMeshesOfAllVersions) {
  const Value axis =
      instance_in("torch.distributed._mesh_layout", "_FlatLayout", Dict{{{"shape", Tuple{{2}}}}});
  const Value axes =
      instance_in("torch.distributed._mesh_layout", "_MeshLayout", Dict{{{"axes", Tuple{{axis}}}}});
  const Dict mesh_215{{{"_layout", axes}, {"_coordinate_on_dim", Tuple{{1}}}}};
  const Dict mesh_25{{{"mesh", view_of("1", 2, 0, {2}, {1})}, {"_coordinate_on_dim", pickle::List{{1}}}}};
  for (const Dict& mesh : {mesh_211(Tuple{{2}}, Tuple{{1}}), mesh_215, mesh_25}) {
    const std::optional<DTensor> tensor = dtensor_of(dtensor_with(mesh, Tuple{{kRows}}));
    ASSERT_TRUE(tensor);
    EXPECT_EQ(tensor->shape, (Dims{5, 2}));
    EXPECT_EQ(tensor->mesh, (Dims{2}));
    EXPECT_THAT(tensor->position, ElementsAre(1));
    EXPECT_THAT(parts_of(*tensor), ElementsAre(LocalPart{{{3, 0}, {2, 2}}, {0, 0}}));
  }
}

TEST(DTensorTest, OtherValuesAreNone) {
  EXPECT_FALSE(dtensor_of(7));
  EXPECT_FALSE(dtensor_of(view_of("0", 2, 0, {2}, {1})));
}

TEST(DTensorTest, RejectsWhatContradictsItself) {
  const auto rejection = [](ErrorKind kind, const Dict& mesh, const Value& cut) {
    return error_of(kind, [&] { (void)parts_of(*dtensor_of(dtensor_with(mesh, Tuple{{cut}}))); });
  };
  const Dict mesh = mesh_211(Tuple{{2}}, Tuple{{1}});
  EXPECT_THAT(rejection(ErrorKind::kFailure, mesh, placement("_StridedPartial")),
              HasSubstr("_StridedPartial"));
  EXPECT_THAT(rejection(ErrorKind::kFailure, mesh, placement("Partial")), HasSubstr("placed as Partial"));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, mesh, placement("Shard", Dict{{{"dim", 2}}})),
              HasSubstr("dimension 2"));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, mesh, placement("Shard", Dict{{{"dim", -1}}})),
              HasSubstr("is -1"));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, mesh, placement("Replicate")),
              HasSubstr("its part on this rank is [2, 2], but its placement says [5, 2]"));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, mesh_211(Tuple{{2}}, Tuple{{2}}), kRows),
              HasSubstr("place [2]"));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, mesh_211(Tuple{{2, 1}}, Tuple{{1, 0}}), kRows),
              HasSubstr("do not fit"));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, mesh_211(Tuple{{0}}, Tuple{{}}), kRows),
              HasSubstr("mesh of 0 ranks"));
  EXPECT_THAT(rejection(ErrorKind::kCorrupt, mesh_211(Tuple{{INT64_MAX, 4}}, Tuple{{0, 0}}), kRows),
              HasSubstr("overflows"));
}

// Along one dimension, all ranks together have every element once, and the sizes are those of torch.chunk.
RC_GTEST_PROP(DTensorPropertyTest, TheRanksOfAMeshTileTheTensor, ()) {
  const auto size = *rc::gen::inRange<std::int64_t>(0, 40);
  const auto outer = *rc::gen::inRange<std::int64_t>(1, 6);
  const auto inner = *rc::gen::inRange<std::int64_t>(1, 6);
  const auto factor = *rc::gen::inRange<std::int64_t>(1, 5);
  std::map<std::int64_t, int> times;
  for (std::int64_t a = 0; a < outer; ++a) {
    for (std::int64_t b = 0; b < inner; ++b) {
      DTensor tensor;
      tensor.shape = {size};
      tensor.mesh = {outer, inner};
      tensor.position = {a, b};
      tensor.placements = {{0, factor}, {0, 1}};
      // Any other size of the local tensor is refused.
      int fitting = 0;
      for (std::int64_t local = 0; local <= size; ++local) {
        tensor.local.shape = {local};
        try {
          std::int64_t at = 0;
          for (const LocalPart& part : parts_of(tensor)) {
            RC_ASSERT(part.local_offset == Dims{at});
            for (std::int64_t i = 0; i < part.box.sizes[0]; ++i) ++times[part.box.offsets[0] + i];
            at += part.box.sizes[0];
          }
          RC_ASSERT(at == local);
          ++fitting;
        } catch (const Error&) {
        }
      }
      RC_ASSERT(fitting == 1);
    }
  }
  RC_ASSERT(times.size() == static_cast<std::size_t>(size));
  for (const auto& [element, count] : times) RC_ASSERT(count == 1);
}

// FSDP2 over tensor parallelism, from an example of torch.
TEST(DTensorTest, AStridedShardComesFromSeveralPlaces) {
  DTensor tensor;
  tensor.shape = {9};
  tensor.mesh = {4};
  tensor.position = {0};
  tensor.placements = {{0, 2}};
  tensor.local.shape = {3};
  EXPECT_THAT(parts_of(tensor), ElementsAre(LocalPart{{{0}, {2}}, {0}}, LocalPart{{{5}, {1}}, {2}}));
  tensor.position = {3};
  tensor.local.shape = {1};
  EXPECT_THAT(parts_of(tensor), ElementsAre(LocalPart{{{8}, {1}}, {0}}));
}

}  // namespace
}  // namespace accel::ckpt
