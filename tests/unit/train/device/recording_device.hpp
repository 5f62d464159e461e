#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// A device that only records the order of its streams and events. It computes nothing: tensors of the CPU
// stand for its own.

namespace accel::train::testing {

inline constexpr auto kType = c10::DeviceType::PrivateUse1;
inline const c10::Device kDevice(kType, 0);

inline std::vector<std::string> told;
inline int current = 0;
inline int streams = 0;
inline std::intptr_t events = 0;

inline void tell(std::string text) { told.push_back(std::move(text)); }

inline c10::Stream stream_of(int id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }

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

inline const c10::impl::DeviceGuardImplRegistrar registrar(kType, new Recorder);

/// Begins with an empty record.
class RecordingTest : public ::testing::Test {
 protected:
  RecordingTest() {
    told.clear();
    current = streams = 0;
    events = 0;
  }
};

}  // namespace accel::train::testing
