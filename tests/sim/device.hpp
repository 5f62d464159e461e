#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <mutex>
#include <string>
#include <vector>

#include "memory.hpp"
#include "order.hpp"
#include "timeline.hpp"

namespace accel::sim {

/// The device type of the simulated device, which libtorch gives to devices that it does not know.
inline constexpr auto kSim = c10::DeviceType::PrivateUse1;

/// What an event holds: how far the streams were, and when.
struct EventState {
  Clock clock;
  Seconds time = 0;
  std::string cause;  ///< The last work before the event.
};

/// The simulated device of this process. Work runs on the calling thread at once, and its order is only
/// noted: so results do not depend on time, and each access that the program has not ordered is found.
///
/// An unordered access is a c10::Error. With ACCEL_SIM_RACES=report it is written to stderr only.
class Device {
 public:
  static Device& instance();

  /// Gives a piece of work to the current stream, or to `stream`.
  class Work {
   public:
    Work(Device& device, StreamNumber stream, std::string name);
    /// Notes that the work reads or writes a tensor of the device. An access that conflicts with another is
    /// an error.
    void access(const at::Tensor& tensor, bool writes);
    /// Notes a copy between the device and pinned memory of the host.
    void copies_pinned(const void* address, std::size_t bytes, bool writes);
    /// Ends the work, which takes `seconds` by the model.
    void end(Seconds seconds);
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

   private:
    Device& device_;
    Moment moment_;
    std::string name_;
    std::size_t bytes_ = 0;
  };

  [[nodiscard]] StreamNumber current_stream() const;
  StreamNumber exchange_stream(StreamNumber stream);
  StreamNumber new_stream(const std::string& name);
  [[nodiscard]] static StreamNumber number_of(const c10::Stream& stream);
  [[nodiscard]] static c10::Stream stream_of(StreamNumber number, c10::DeviceIndex device);

  EventState record(StreamNumber stream);
  void wait(StreamNumber stream, const EventState& event);
  /// Lets the host wait. `cause` says what for.
  void synchronize(const EventState& event, const std::string& cause);
  void synchronize_stream(StreamNumber stream, const std::string& cause);
  void synchronize_all(const std::string& cause);

  /// Returns a tensor of the CPU on the same memory. Only the device's own code may use it.
  at::Tensor on_cpu(const at::Tensor& tensor);
  [[nodiscard]] void* bytes_of(const void* address) const;

  void* allocate(std::size_t bytes);
  void free(void* address);
  void record_stream(void* address, StreamNumber stream);
  void* allocate_pinned(std::size_t bytes);
  void free_pinned(void* address);
  [[nodiscard]] bool is_pinned(const void* address) const { return pinned_.contains(address); }
  [[nodiscard]] bool is_device_memory(const void* address) const { return memory_.contains(address); }
  [[nodiscard]] std::string trespass(const void* address) const { return pinned_.trespass(address); }

  [[nodiscard]] std::pair<std::size_t, std::size_t> allocated_and_peak();
  void reset_peak();
  Timeline& timeline() { return timeline_; }
  /// Whether work on so many bytes is left out, because only its time is wanted (ACCEL_SIM_COMPUTE=small).
  [[nodiscard]] bool leaves_out(std::size_t bytes) const { return only_small_ && bytes > kSmallBytes; }
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  Device();
  void report(const Access& now, const std::vector<Access>& before, bool writes);

  static constexpr std::size_t kSmallBytes = std::size_t{1} << 20;

  mutable std::recursive_mutex mutex_;
  const bool only_small_;
  Order order_;
  DeviceMemory memory_;
  PinnedMemory pinned_;
  Timeline timeline_;
  std::vector<std::string> stream_names_;
  std::vector<std::string> last_work_;
};

/// The number of simulated devices.
inline constexpr c10::DeviceIndex kDevices = 8;

c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);

/// While it lives, the current device is that of a tensor, whose current stream gets the work, as with CUDA.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const at::Tensor& tensor) : OnDeviceOf(tensor.device()) {}
  explicit OnDeviceOf(at::Device device) : before_(exchange_device(device.index())) {}
  OnDeviceOf(const OnDeviceOf&) = delete;
  OnDeviceOf& operator=(const OnDeviceOf&) = delete;
  ~OnDeviceOf() { exchange_device(before_); }

 private:
  c10::DeviceIndex before_;
};

/// The generator of random numbers of CPU kernels that run for the device.
at::Generator inner_generator(const std::optional<at::Generator>& generator);

/// The allocator of the device's memory.
c10::Allocator* device_allocator();

}  // namespace accel::sim
