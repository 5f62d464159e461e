// The order of streams and events in which HostStorage copies, on a device that only records it.

#include "train/device/host_storage.hpp"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace accel::train {
namespace {

using ::testing::ElementsAre;

constexpr auto kType = c10::DeviceType::PrivateUse1;
const at::Device kDevice(kType, 0);

std::vector<std::string> told;
int current = 0;
int streams = 0;
std::intptr_t events = 0;

void tell(std::string text) { told.push_back(std::move(text)); }

c10::Stream stream_of(int id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }

/// A device with streams 1, 2, ... beside its default stream 0. libtorch sees no device of this type.
class Recorder final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }

  c10::Stream getStream(c10::Device /*device*/) const override { return stream_of(current); }
  c10::Stream getDefaultStream(c10::Device /*device*/) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device /*device*/, bool high_priority) const override {
    EXPECT_TRUE(high_priority);
    return stream_of(++streams);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int before = std::exchange(current, static_cast<int>(stream.id()));
    if (before != current) tell(fmt::format("on {}", current));
    return stream_of(before);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = reinterpret_cast<void*>(++events);
    tell(fmt::format("event {} on {}", number_of(*event), stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    tell(fmt::format("{} waits for {}", stream.id(), number_of(event)));
  }
  bool queryEvent(void* /*event*/) const override { return true; }
  void destroyEvent(void* /*event*/, const c10::DeviceIndex /*device*/) const noexcept override {}
  void synchronizeEvent(void* event) const override {
    tell(fmt::format("host waits for {}", number_of(event)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    tell(fmt::format("host waits for stream {}", stream.id()));
  }

 private:
  static std::intptr_t number_of(void* event) { return reinterpret_cast<std::intptr_t>(event); }
};

const c10::impl::DeviceGuardImplRegistrar registrar(kType, new Recorder);

class HostStorageTest : public ::testing::Test {
 protected:
  HostStorageTest() {
    told.clear();
    current = streams = 0;
    events = 0;
  }
};

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
