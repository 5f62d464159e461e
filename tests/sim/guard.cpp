// What libtorch asks of a device: its streams, events and generators, and whether memory is pinned.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "device.hpp"

namespace accel::sim {
namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  [[nodiscard]] c10::DeviceType type() const override { return kSim; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device device) const override {
    return {kSim, exchange_device(device.index())};
  }
  [[nodiscard]] c10::Device getDevice() const override { return {kSim, current_device()}; }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(device.index()); }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  [[nodiscard]] c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex before = exchange_device(device.index());
    const StreamNumber number = Device::instance().current_stream();
    exchange_device(before);
    return Device::stream_of(number, device.index());
  }
  [[nodiscard]] c10::Stream getDefaultStream(c10::Device device) const override {
    return Device::stream_of(device.index(), device.index());
  }
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return Device::stream_of(Device::instance().new_stream("stream"), device.index());
  }
  [[nodiscard]] c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, false);
  }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::DeviceIndex before = exchange_device(stream.device_index());
    const StreamNumber number = Device::instance().exchange_stream(Device::number_of(stream));
    exchange_device(before);
    return Device::stream_of(number, stream.device_index());
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new EventState;
    *static_cast<EventState*>(*event) = Device::instance().record(Device::number_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr)
      Device::instance().wait(Device::number_of(stream), *static_cast<EventState*>(event));
  }
  // All work has run when it was given to the device, so whoever asks learns that it is done.
  [[nodiscard]] bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<EventState*>(event);
  }
  [[nodiscard]] bool queryStream(const c10::Stream& stream) const override {
    synchronizeStream(stream);
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Device::instance().synchronize_stream(Device::number_of(stream), "stream");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) Device::instance().synchronize(*static_cast<EventState*>(event), "event");
  }
  void synchronizeDevice(c10::DeviceIndex /*device*/) const override {
    Device::instance().synchronize_all("device");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Device::instance().record_stream(data.get(), Device::number_of(stream));
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex /*device*/) const override {
    return (static_cast<EventState*>(second)->time - static_cast<EventState*>(first)->time) * 1e3;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

/// A generator of the device. It draws the numbers of a CPU generator with the same seed.
struct SimGenerator final : c10::GeneratorImpl {
  explicit SimGenerator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kSim, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator()) {}

  void set_current_seed(std::uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { inner.set_offset(offset); }
  [[nodiscard]] std::uint64_t get_offset() const override { return inner.get_offset(); }
  [[nodiscard]] std::uint64_t current_seed() const override { return inner.current_seed(); }
  std::uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  [[nodiscard]] c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  [[nodiscard]] SimGenerator* clone_impl() const override {
    auto* const copy = new SimGenerator(device().index());
    copy->inner = inner.clone();
    return copy;
  }

  mutable at::Generator inner;
};

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto generators = [] {
    std::array<at::Generator, kDevices> all;
    for (c10::DeviceIndex i = 0; i < kDevices; ++i)
      all.at(static_cast<std::size_t>(i)) = at::make_generator<SimGenerator>(i);
    return all;
  }();
  return generators.at(static_cast<std::size_t>(device < 0 ? current_device() : device));
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const address = Device::instance().allocate_pinned(bytes);
    return {address, address, &PinnedAllocator::release, at::kCPU};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release(void* address) { Device::instance().free_pinned(address); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  [[nodiscard]] bool isBuilt() const override { return true; }
  [[nodiscard]] bool isAvailable() const override { return true; }
  [[nodiscard]] bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  [[nodiscard]] c10::DeviceIndex deviceCount() const override { return kDevices; }
  [[nodiscard]] c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  [[nodiscard]] const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  [[nodiscard]] at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<SimGenerator>(device < 0 ? current_device() : device);
  }
  [[nodiscard]] at::Device getDeviceFromPtr(void* /*data*/) const override {
    return {kSim, current_device()};
  }
  [[nodiscard]] bool isPinnedPtr(const void* data) const override {
    return Device::instance().is_pinned(data);
  }
  [[nodiscard]] at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator allocator;
    return &allocator;
  }
};

struct sigaction before_segv {};

/// Says what a host access to the device's memory, or to pinned memory in use, has done wrong.
void on_segv(int signal, siginfo_t* info, void* context) {
  Device& device = Device::instance();
  std::string message;
  if (device.is_device_memory(info->si_addr)) {
    message = "the host reads or writes memory of the device";
  } else if (device.is_pinned(info->si_addr)) {
    message = device.trespass(info->si_addr);
  }
  if (!message.empty()) {
    std::fprintf(stderr, "accel-sim: RACE: %s\n", message.c_str());
    std::fflush(stderr);
  }
  if ((before_segv.sa_flags & SA_SIGINFO) != 0 && before_segv.sa_sigaction != nullptr)
    return before_segv.sa_sigaction(signal, info, context);
  std::_Exit(70);
}

const bool device_registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::register_privateuse1_backend("sim");
  struct sigaction action {};
  action.sa_sigaction = &on_segv;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGSEGV, &action, &before_segv);
  return true;
}();

}  // namespace

at::Generator inner_generator(const std::optional<at::Generator>& generator) {
  const at::Generator& ours = generator && generator->defined() ? *generator : default_generator(-1);
  if (ours.device().type() != kSim) return ours;
  return static_cast<const SimGenerator*>(ours.unsafeGetGeneratorImpl())->inner;
}

}  // namespace accel::sim
