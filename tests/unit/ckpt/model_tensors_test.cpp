#include "ckpt/model_tensors.hpp"

#include <gmock/gmock.h>

#include "helpers.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::flat_split;
using testing::TempDir;
using testing::Truth;
using testing::write_checkpoint;

class ModelTensorsTest : public ::testing::Test {
 protected:
  ModelTensors model_of(const std::vector<Truth>& truths, const std::vector<DcpItem>& objects = {}) {
    write_checkpoint(dir_.path(), truths, flat_split(truths, 2), objects);
    DcpReader reader(dir_.path());
    return model_tensors_of(reader);
  }
  std::vector<std::string> names_of(const std::vector<Truth>& truths,
                                    const std::vector<DcpItem>& objects = {}) {
    std::vector<std::string> names;
    for (const StoredTensor& tensor : model_of(truths, objects).tensors) names.push_back(tensor.name);
    return names;
  }
  std::vector<Tie> ties_of(const std::vector<Truth>& truths) {
    return find_ties(model_of(truths).tensors, dir_.path());
  }

  static Truth tensor(StatePath path, std::uint32_t seed = 1, Dims shape = {2, 3}) {
    return Truth::make(std::move(path), DType::kFloat32, std::move(shape), seed);
  }
  static Truth constant(StatePath path) {
    Truth truth = tensor(std::move(path));
    truth.data.assign(truth.data.size(), '\0');
    return truth;
  }

  TempDir dir_;
};

TEST_F(ModelTensorsTest, LeavesOutTheOneRoot) {
  EXPECT_THAT(names_of({tensor({"model", "b.c"}), tensor({"model", "a"})}), ElementsAre("b.c", "a"));
}

TEST_F(ModelTensorsTest, KeepsRootsThatDiffer) {
  EXPECT_THAT(names_of({tensor({"model", "a"}), tensor({"ema", "a"})}), ElementsAre("model.a", "ema.a"));
}

TEST_F(ModelTensorsTest, KeepsNamesOfOneKey) {
  EXPECT_THAT(names_of({tensor({"model.a"})}), ElementsAre("model.a"));
}

TEST_F(ModelTensorsTest, AnObjectBesideTheRootKeepsIt) {
  EXPECT_THAT(names_of({tensor({"model", "a"})}, {{{"step"}, 3}}), ElementsAre("model.a"));
}

TEST_F(ModelTensorsTest, NamesObjects) {
  EXPECT_THAT(model_of({tensor({"model", "a"})}, {{{"model", "extra"}, 3}}).objects, ElementsAre("extra"));
}

TEST_F(ModelTensorsTest, RefusesAnOptimizer) {
  (void)error_of(ErrorKind::kFailure, [&] {
    (void)model_of({tensor({"optimizer", "state", "a", "exp_avg"})});
  });
}

TEST_F(ModelTensorsTest, SameBytesUnderTwoNamesAreTied) {
  EXPECT_THAT(
      ties_of({tensor({"m", "wte.weight"}), tensor({"m", "other"}, 9), tensor({"m", "lm_head.weight"})}),
      ElementsAre(Tie{"lm_head.weight", "wte.weight"}));
}

TEST_F(ModelTensorsTest, ThreeNamesKeepTheFirst) {
  EXPECT_THAT(ties_of({tensor({"m", "shared"}), tensor({"m", "encoder"}), tensor({"m", "decoder"})}),
              ElementsAre(Tie{"decoder", "shared"}, Tie{"encoder", "shared"}));
}

TEST_F(ModelTensorsTest, EqualIsNotTiedWithoutReason) {
  // Copies of a layer; vectors; constants; another type.
  EXPECT_THAT(ties_of({tensor({"m", "h.0.w"}), tensor({"m", "h.11.w"})}), ElementsAre());
  std::filesystem::remove_all(dir_.path());
  EXPECT_THAT(ties_of({tensor({"m", "a"}, 1, {6}), tensor({"m", "b"}, 1, {6})}), ElementsAre());
  std::filesystem::remove_all(dir_.path());
  EXPECT_THAT(ties_of({constant({"m", "a"}), constant({"m", "b"})}), ElementsAre());
}

TEST_F(ModelTensorsTest, AnyDifferentByteIsNoTie) {
  Truth late = tensor({"m", "b"}, 1, {600, 1000});
  late.data.back() = static_cast<char>(late.data.back() + 1);
  EXPECT_THAT(ties_of({tensor({"m", "a"}, 1, {600, 1000}), late}), ElementsAre());
}

}  // namespace
}  // namespace accel::ckpt
