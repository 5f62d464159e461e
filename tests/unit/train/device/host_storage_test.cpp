// The order of streams and events in which HostStorage copies, on a device that only records it.

#include "train/device/host_storage.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "recording_device.hpp"

namespace accel::train {
namespace {

using ::testing::ElementsAre;
using testing::kDevice;
using testing::tell;
using testing::told;

using HostStorageTest = testing::RecordingTest;

TEST_F(HostStorageTest, CopiesBehindTheCurrentStreamOnAStreamForEachDirection) {
  HostStorage storage(kDevice);
  const at::Tensor device = at::zeros({2});
  const at::Tensor host = at::ones({2});
  const auto fetch = storage.fetch(device, host);
  EXPECT_THAT(told, ElementsAre("event 1 on 0", "1 waits for 1", "on 1", "event 2 on 1", "on 0"));
  EXPECT_TRUE(device.equal(host));
  told.clear();
  const auto store = storage.store(host, device);
  EXPECT_THAT(told, ElementsAre("event 3 on 0", "2 waits for 3", "on 2", "event 4 on 2", "on 0"));
  told.clear();
  fetch->wait_on_stream();
  EXPECT_THAT(told, ElementsAre("0 waits for 2"));
  told.clear();
  store->synchronize();
  EXPECT_THAT(told, ElementsAre("host waits for 4"));
}

TEST_F(HostStorageTest, WorkBehindACopyIsGivenToItsStream) {
  HostStorage storage(kDevice);
  const auto fetch = storage.fetch(at::zeros({2}), at::ones({2}));
  told.clear();
  fetch->then([] { tell("work"); });
  EXPECT_THAT(told, ElementsAre("on 1", "work", "on 0"));
}

TEST_F(HostStorageTest, TheHostWaitsForBothDirections) {
  HostStorage storage(kDevice);
  storage.synchronize();
  EXPECT_THAT(told, ElementsAre("host waits for stream 1", "host waits for stream 2"));
}

TEST_F(HostStorageTest, ConvertsOnTheWay) {
  HostStorage storage(kDevice);
  const at::Tensor narrow = at::zeros({2}, at::kBFloat16);
  const at::Tensor wide = at::full({2}, 1.0 / 3);
  (void)storage.fetch(narrow, wide);
  EXPECT_TRUE(narrow.equal(wide.to(at::kBFloat16)));
  const at::Tensor back = at::zeros({2});
  (void)storage.store(back, narrow);
  EXPECT_TRUE(back.equal(narrow.to(at::kFloat)));
}

TEST_F(HostStorageTest, WithoutPinnedMemorySaysSo) {
  HostStorage storage(kDevice);
  try {
    (void)storage.empty(512, at::kFloat);  // No driver can pin memory here.
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("cannot get 2.05 kB of pinned host memory"), std::string::npos)
        << error.message();
  }
}

}  // namespace
}  // namespace accel::train
