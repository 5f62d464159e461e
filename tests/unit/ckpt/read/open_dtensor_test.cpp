#include <gmock/gmock.h>

#include <filesystem>

#include "ckpt/read/openers.hpp"
#include "dtensor_values.hpp"
#include "opened.hpp"

namespace accel::ckpt {
namespace {

using pickle::Dict;
using pickle::Tuple;
using testing::dtensor_with;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kRows;
using testing::mesh_211;
using testing::placement;
using testing::read_tensor;
using testing::TempDir;
using testing::Truth;
using testing::view_of;
using testing::write_torch_file;

// A tensor of shape [5, 2] over two ranks: rows 0 to 2, and 3 to 4; and one that both have.
class OpenDtensorTest : public ::testing::Test {
 protected:
  OpenDtensorTest() {
    write(0, Dict{{{"w", rows_of(0, 3)}, {"step", view_of("1", 1, 0, {}, {})}, {"lr", 0.5}}},
          rows_.data.substr(0, 24));
    write(1, Dict{{{"w", rows_of(1, 2)}, {"step", view_of("1", 1, 0, {}, {})}, {"lr", 0.5}}},
          rows_.data.substr(24));
  }
  static pickle::Value rows_of(int rank, int rows) {
    return dtensor_with(mesh_211(Tuple{{2}}, Tuple{{rank}}), Tuple{{kRows}},
                        view_of("0", rows * 2, 0, {rows, 2}, {2, 1}));
  }
  void write(int rank, const pickle::Value& root, const std::string& rows) {
    const std::filesystem::path path = dir_ / ("optimizer_rank" + std::to_string(rank) + ".bin");
    std::filesystem::remove(path);
    write_torch_file(path, root, {rows, step_.data});
  }
  std::unique_ptr<Checkpoint> open() { return open_dtensor(dir_ / "optimizer_rank0.bin"); }

  TempDir dir_;
  const Truth rows_ = Truth::make({"w"}, DType::kFloat32, {5, 2}, 1);
  const Truth step_ = Truth::make({"step"}, DType::kFloat32, {}, 2);
};

TEST_F(OpenDtensorTest, PutsTheRanksPartsTogether) {
  const auto checkpoint = open();
  EXPECT_EQ(checkpoint->kind(), Kind::kDtensor);
  EXPECT_THAT(testing::tensor_names(*checkpoint), ElementsAre("w", "step"));
  EXPECT_THAT(testing::object_names(*checkpoint), ElementsAre("lr"));
  EXPECT_EQ(checkpoint->tensors()[0].shape, (Dims{5, 2}));
  EXPECT_EQ(checkpoint->tensors()[0].pieces, 2U);
  EXPECT_EQ(read_tensor(*checkpoint, "w"), rows_.data);
}

TEST_F(OpenDtensorTest, APlainTensorOfEveryRankIsCopies) {
  const auto checkpoint = open();
  EXPECT_EQ(checkpoint->tensors()[1].pieces, 1U);
  EXPECT_EQ(checkpoint->tensors()[1].copies, 1U);
  EXPECT_EQ(read_tensor(*checkpoint, "step"), step_.data);
}

TEST_F(OpenDtensorTest, ReplicatedRanksAreCopies) {
  const Truth small = Truth::make({"w"}, DType::kFloat32, {5, 2}, 3);
  for (const int rank : {0, 1}) {
    const pickle::Value whole =
        dtensor_with(mesh_211(Tuple{{2}}, Tuple{{rank}}), Tuple{{placement("Replicate")}},
                     view_of("0", 10, 0, {5, 2}, {2, 1}));
    write(rank, Dict{{{"w", whole}}}, small.data);
  }
  const auto checkpoint = open();
  EXPECT_EQ(checkpoint->tensors()[0].copies, 1U);
  EXPECT_EQ(read_tensor(*checkpoint, "w"), small.data);
}

TEST_F(OpenDtensorTest, AMissingRankIsNamed) {
  std::filesystem::remove(dir_ / "optimizer_rank1.bin");
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)open(); }),
              HasSubstr("the file of rank 1 of 2 is missing"));
}

TEST_F(OpenDtensorTest, AWorldSizeOfAShardedTensorIsComparedWithTheFiles) {
  constexpr const char* kModule = "torch.distributed._shard.sharded_tensor.api";
  const auto instance = [](const char* type, Dict members) {
    return pickle::instance(pickle::Global(kModule, type), std::move(members));
  };
  for (const int rank : {0, 1}) {
    const pickle::Value state =
        Tuple{{pickle::List{}, instance("ShardedTensorMetadata", Dict{{{"size", Tuple{{0}}}}}),
               instance("ProcessGroupState", Dict{{{"global_world_size", std::int64_t{1} << 40}}}),
               pickle::None{}, false}};
    const pickle::Value tensor = pickle::reduce(
        pickle::Global("torch._tensor", "_rebuild_from_type_v2"),
        {pickle::Global("torch._utils", "_rebuild_wrapper_subclass"),
         pickle::Global(kModule, "ShardedTensor"),
         Tuple{{pickle::Global(kModule, "ShardedTensor"), pickle::Global("torch", "float32"), Tuple{{0}}}},
         state});
    write(rank, Dict{{{"w", tensor}}}, "");
  }
  EXPECT_THAT(error_of(ErrorKind::kMissing, [&] { (void)open(); }),
              HasSubstr("the file of rank 2 of 1099511627776 is missing"));
}

TEST_F(OpenDtensorTest, ALocalTensorOfAnotherShapeIsRejected) {
  write(1, Dict{{{"w", rows_of(1, 1)}}}, rows_.data.substr(24));
  EXPECT_THAT(error_of(ErrorKind::kCorrupt, [&] { (void)open(); }), HasSubstr("tensor 'w'"));
}

}  // namespace
}  // namespace accel::ckpt
