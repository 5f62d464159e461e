#include "ckpt/convert/ties.hpp"

#include <gmock/gmock.h>

#include <optional>

#include "ckpt/convert/select_tensors.hpp"
#include "fake_checkpoint.hpp"

namespace accel::ckpt {
namespace {

using ::testing::ElementsAre;
using testing::FakeCheckpoint;
using testing::Truth;

constexpr std::nullopt_t kNone = std::nullopt;

class TiesTest : public ::testing::Test {
 protected:
  void add(const std::string& name, DType dtype, Dims shape, std::uint32_t seed) {
    truths_.push_back(Truth::make({name}, dtype, std::move(shape), seed));
  }
  void add(const std::string& name, std::uint32_t seed) { add(name, DType::kFloat32, {5, 7}, seed); }

  std::vector<std::optional<std::size_t>> ties() {
    FakeCheckpoint source(dir_.path(), truths_, 11, 2);
    OutputState state = select_tensors(source, {}).state;
    mark_ties(source, state, EqualTensors::kDropped);
    return tied(state);
  }

  static std::vector<std::optional<std::size_t>> tied(const OutputState& state) {
    std::vector<std::optional<std::size_t>> ties;
    for (const OutputItem& item : state.tensors) ties.push_back(item.tied_to);
    return ties;
  }

  testing::TempDir dir_;
  std::vector<Truth> truths_;
};

TEST_F(TiesTest, TheSameBytesUnderTwoNames) {
  add("wte.weight", 1);
  add("other.weight", 2);
  add("lm_head.weight", 1);
  add("third.weight", 1);
  EXPECT_THAT(ties(), ElementsAre(kNone, kNone, 0U, 0U));
}

// Nothing says that they are tied.
TEST_F(TiesTest, EqualTensorsAreKeptByDefault) {
  add("wte.weight", 1);
  add("lm_head.weight", 1);
  FakeCheckpoint source(dir_.path(), truths_, 11, 2);
  OutputState state = select_tensors(source, {}).state;
  mark_ties(source, state, EqualTensors::kKept);
  EXPECT_THAT(tied(state), ElementsAre(kNone, kNone));
}

TEST_F(TiesTest, ARecordedTieNeedsTheSameBytes) {
  add("a", 1);
  add("b", DType::kFloat32, {3}, 2);
  add("c", 3);
  add("d", 1);
  add("e", DType::kFloat32, {3}, 2);
  FakeCheckpoint source(dir_.path(), truths_, 11, 2);
  OutputState state = select_tensors(source, {}).state;
  mark_recorded(source, state, {{3, 0, 2, 1}, {4, 1}, {17, 0}});
  EXPECT_THAT(tied(state), ElementsAre(kNone, kNone, kNone, 0U, 1U));
}

TEST_F(TiesTest, NamesThatDifferInNumbersOnlyAreCopies) {
  add("h.0.w", 1);
  add("h.1.w", 1);
  add("h.12.w", 1);
  add("g.0.w", 1);
  EXPECT_THAT(ties(), ElementsAre(kNone, kNone, kNone, 0U));
}

TEST_F(TiesTest, OneDimensionIsNotEnough) {
  add("a", DType::kFloat32, {35}, 1);
  add("b", DType::kFloat32, {35}, 1);
  add("c", DType::kFloat32, {}, 1);
  add("d", DType::kFloat32, {}, 1);
  EXPECT_THAT(ties(), ElementsAre(kNone, kNone, kNone, kNone));
}

TEST_F(TiesTest, ConstantsAreNotTied) {
  for (const char* name : {"a", "b"}) {
    add(name, 1);
    truths_.back().data.assign(truths_.back().data.size(), '\1');
  }
  for (const char* name : {"c", "d"}) {
    add(name, 1);
    truths_.back().data.assign(truths_.back().data.size(), '\1');
    truths_.back().data.back() = '\2';
  }
  EXPECT_THAT(ties(), ElementsAre(kNone, kNone, kNone, 2U));
}

TEST_F(TiesTest, TypeAndShapeCount) {
  add("a", DType::kFloat32, {4, 6}, 1);
  add("b", DType::kFloat32, {6, 4}, 1);
  add("c", DType::kInt32, {4, 6}, 1);
  add("d", DType::kFloat32, {4, 6}, 1);
  add("e", DType::kFloat32, {0, 6}, 1);
  add("f", DType::kFloat32, {0, 6}, 1);
  EXPECT_THAT(ties(), ElementsAre(kNone, kNone, kNone, 0U, kNone, kNone));
}

// Tensors differ after the sample, in a later block, or in the last element.
TEST_F(TiesTest, ADifferenceAnywhereCounts) {
  const Dims shape{2, 300'000};
  for (const std::size_t at : {std::size_t{1024}, std::size_t{262'144}, std::size_t{599'999}}) {
    truths_.clear();
    add("a", DType::kInt8, shape, 1);
    add("b", DType::kInt8, shape, 1);
    EXPECT_THAT(ties(), ElementsAre(kNone, 0U));
    truths_[1].data[at] = static_cast<char>(truths_[1].data[at] ^ 1);
    EXPECT_THAT(ties(), ElementsAre(kNone, kNone)) << at;
  }
}

TEST_F(TiesTest, AWrongSampleTwinDoesNotHideTheRightOne) {
  add("a", DType::kInt8, {2, 1000}, 1);
  truths_[0].data.back() = '?';
  add("b", DType::kInt8, {2, 1000}, 1);
  add("c", DType::kInt8, {2, 1000}, 1);
  EXPECT_THAT(ties(), ElementsAre(kNone, kNone, 1U));
}

// A file of torch.save in which tensors share storages.
class SharedTest : public TiesTest {
 protected:
  // Tensors of six float32 elements at these places, called a, b, ...
  std::vector<std::optional<std::size_t>> shared(const std::vector<Extent>& extents, Kind kind, bool all_ties,
                                                 const std::string& bytes) {
    testing::write_file(dir_ / "m.bin", bytes);
    std::vector<StoredTensor> stored;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      add(std::string(1, static_cast<char>('a' + i)), DType::kFloat32, extents[i].box.sizes, 0);
      stored.push_back({fqn_of(truths_[i].path), DType::kFloat32, extents[i].box.sizes, {extents[i]}});
    }
    FakeCheckpoint source(dir_.path(), truths_, stored);
    source.contents().kind = kind;
    OutputState state = select_tensors(source, {}).state;
    all_ties ? mark_ties(source, state, EqualTensors::kDropped) : mark_shared(source, state);
    return tied(state);
  }

  static Extent at(std::uint64_t offset, Dims sizes, Dims strides) {
    const Dims zeros(sizes.size(), 0);
    return {"m.bin", offset, {zeros, std::move(sizes)}, std::move(strides)};
  }
};

TEST_F(SharedTest, TheSameElementsOfTheSameStorage) {
  const std::string bytes = testing::pattern(100, 1);
  const std::vector<Extent> extents{at(8, {6}, {1}),       at(12, {6}, {1}), at(8, {6}, {1}),
                                    at(8, {2, 3}, {3, 1}), at(8, {6}, {2}),  at(8, {2, 3}, {3, 1})};
  EXPECT_THAT(shared(extents, Kind::kTorch, false, bytes), ElementsAre(kNone, kNone, 0U, kNone, kNone, 3U));
  truths_.clear();
  EXPECT_THAT(shared(extents, Kind::kSafetensors, false, bytes),
              ElementsAre(kNone, kNone, kNone, kNone, kNone, kNone));
}

TEST_F(SharedTest, TensorsWithoutElementsAreNotShared) {
  EXPECT_THAT(shared({at(8, {0}, {1}), at(8, {0}, {1})}, Kind::kTorch, false, "12345678"),
              ElementsAre(kNone, kNone));
}

// c shares the storage of b, and b has the bytes of a, so b and c are both tied to a. torch.save would have
// recorded a tie of a and b.
TEST_F(SharedTest, ATieOfATieIsATieToTheFirst) {
  const std::string once = testing::pattern(24, 1);
  const std::vector<Extent> extents{at(0, {2, 3}, {3, 1}), at(24, {2, 3}, {3, 1}), at(24, {2, 3}, {3, 1})};
  EXPECT_THAT(shared(extents, Kind::kLocal, true, once + once), ElementsAre(kNone, 0U, 0U));
  truths_.clear();
  EXPECT_THAT(shared(extents, Kind::kTorch, true, once + once), ElementsAre(kNone, kNone, 1U));
}

}  // namespace
}  // namespace accel::ckpt
