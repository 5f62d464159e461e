#include "train/device/device_reader.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.hpp"
#include "recording_device.hpp"

namespace accel::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kDevice;
using testing::told;

/// Memory that is not pinned, since no driver can pin any here.
at::Tensor bytes_of_host(std::int64_t bytes) { return at::empty({bytes}, at::kByte); }

at::Tensor read(StagedReader& reader, const at::Tensor& from) {
  at::Tensor to = at::empty_like(from);
  reader.read({static_cast<std::byte*>(to.mutable_data_ptr()), to.nbytes()}, from);
  return to;
}

using StagedReaderTest = testing::RecordingTest;

TEST_F(StagedReaderTest, WaitsForTheWorkBeforeItAndFillsOnePieceWhileItEmptiesTheOther) {
  StagedReader reader(kDevice, {.stage_bytes = 8, .allocate = bytes_of_host});
  EXPECT_THAT(told, ElementsAre("event 1 on 0", "1 waits for 1"));
  told.clear();
  const at::Tensor from = at::arange(7, at::kFloat);
  EXPECT_TRUE(read(reader, from).equal(from));
  // Nothing here waits for stream 0, which computes.
  EXPECT_THAT(
      told, ElementsAre("on 1", "event 2 on 1", "event 3 on 1", "host waits for 2", "event 2 on 1",
                        "host waits for 3", "event 3 on 1", "host waits for 2", "host waits for 3", "on 0"));
}

TEST_F(StagedReaderTest, ReadsAnyNumberOfBytesOfAnyDtypeThroughPiecesThatGrowToTheLimit) {
  std::vector<std::int64_t> allocated;
  StagedReader reader(kDevice, {.stage_bytes = 16, .allocate = [&](std::int64_t bytes) {
                                  allocated.push_back(bytes);
                                  return bytes_of_host(bytes);
                                }});
  for (const std::int64_t numel : {0, 1, 5, 16, 17, 33, 100}) {
    const at::Tensor codes = at::arange(numel, at::kByte);
    EXPECT_TRUE(read(reader, codes).equal(codes)) << numel;
    const at::Tensor halves = at::arange(numel, at::kBFloat16);
    EXPECT_TRUE(read(reader, halves).equal(halves)) << numel;
  }
  EXPECT_THAT(allocated, ElementsAre(1, 1, 2, 2, 5, 5, 10, 10, 16, 16));
}

TEST_F(StagedReaderTest, ReadsAPartOfATensor) {
  StagedReader reader(kDevice, {.stage_bytes = 8, .allocate = bytes_of_host});
  EXPECT_TRUE(read(reader, at::arange(10, at::kFloat).narrow(0, 3, 5)).equal(at::arange(3, 8, at::kFloat)));
}

TEST_F(StagedReaderTest, WithoutPinnedMemorySaysSo) {
  StagedReader reader(kDevice);
  told.clear();
  try {
    (void)read(reader, at::ones({4}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("cannot get 16 B of pinned host memory"), std::string::npos)
        << error.message();
  }
  told.clear();
  (void)read(reader, at::empty({0}));
  EXPECT_THAT(told, ElementsAre("on 1", "on 0"));
}

}  // namespace
}  // namespace accel::train
