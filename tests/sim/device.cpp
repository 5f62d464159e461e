#include "device.hpp"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace accel::sim {
namespace {

constexpr std::size_t kMemory = std::size_t{16} << 30;
/// Where nothing large is computed, no memory of the system is used either.
constexpr std::size_t kMemoryLeftOut = std::size_t{1} << 40;
constexpr std::size_t kPinned = std::size_t{8} << 30;

thread_local c10::DeviceIndex this_device = 0;
/// The current stream of each device; 0 is the default stream.
thread_local std::array<StreamNumber, kDevices> this_stream{};

bool computes_small_only() {
  const char* const what = std::getenv("ACCEL_SIM_COMPUTE");
  return what != nullptr && std::strcmp(what, "small") == 0;
}

bool only_reports() {
  const char* const races = std::getenv("ACCEL_SIM_RACES");
  return races != nullptr && std::strcmp(races, "report") == 0;
}

std::string text_of(const at::Tensor& tensor) {
  return fmt::format("{} [{}] at {}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     tensor.storage().data());
}

}  // namespace

c10::DeviceIndex current_device() { return this_device; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  // A device without a number is the current one.
  return device < 0 ? this_device : std::exchange(this_device, device);
}

Device& Device::instance() {
  // Never destroyed: tensors outlive everything else when a process ends.
  static auto* const device = new Device();
  return *device;
}

Device::Device()
    : only_small_(computes_small_only()),
      memory_(only_small_ ? kMemoryLeftOut : kMemory, /*poison_up_to=*/only_small_ ? kSmallBytes : kMemory),
      pinned_(kPinned),
      timeline_(Speeds::from_environment()) {
  for (int device = 0; device < kDevices; ++device)
    stream_names_.push_back(fmt::format("default {}", device));
  last_work_.resize(stream_names_.size());
  timeline_.name_stream(0, "default");
}

StreamNumber Device::number_of(const c10::Stream& stream) {
  return stream.id() == 0 ? stream.device_index() : static_cast<StreamNumber>(stream.id());
}

c10::Stream Device::stream_of(StreamNumber number, c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, device), number < kDevices ? 0 : number);
}

StreamNumber Device::current_stream() const {
  const StreamNumber stream = this_stream.at(static_cast<std::size_t>(this_device));
  return stream == 0 ? this_device : stream;
}

StreamNumber Device::exchange_stream(StreamNumber stream) {
  const StreamNumber before = current_stream();
  this_stream.at(static_cast<std::size_t>(this_device)) = stream < kDevices ? 0 : stream;
  return before;
}

StreamNumber Device::new_stream(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<StreamNumber>(stream_names_.size());
  stream_names_.push_back(fmt::format("{} {}", name, number));
  last_work_.emplace_back();
  timeline_.name_stream(number, stream_names_.back());
  return number;
}

EventState Device::record(StreamNumber stream) {
  const std::lock_guard lock(mutex_);
  return {order_.record(stream), timeline_.end_of(stream), last_work_.at(static_cast<std::size_t>(stream))};
}

void Device::wait(StreamNumber stream, const EventState& event) {
  const std::lock_guard lock(mutex_);
  order_.wait(stream, event.clock);
  timeline_.wait(stream, event.time, event.cause);
}

void Device::synchronize(const EventState& event, const std::string& cause) {
  const std::lock_guard lock(mutex_);
  order_.wait_on_host(event.clock);
  timeline_.wait_on_host(event.time, cause);
  pinned_.end_copies(order_);
}

void Device::synchronize_stream(StreamNumber stream, const std::string& cause) {
  synchronize(record(stream), cause);
}

void Device::synchronize_all(const std::string& cause) {
  const std::lock_guard lock(mutex_);
  for (StreamNumber stream = 0; stream < order_.streams(); ++stream) synchronize(record(stream), cause);
}

void* Device::bytes_of(const void* address) const {
  if (memory_.contains(address)) return memory_.bytes_of(address);
  if (pinned_.contains(address)) return pinned_.bytes_of(address);
  return const_cast<void*>(address);
}

at::Tensor Device::on_cpu(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return tensor;
  // The storage can grow, as an operator's output may: then it leaves the device's memory (operators.cpp).
  const c10::Storage& storage = tensor.storage();
  void* const bytes = storage.data() == nullptr ? nullptr : bytes_of(storage.data());
  c10::Storage alias(c10::Storage::use_byte_size_t(), storage.nbytes(),
                     at::DataPtr(
                         bytes, nullptr, [](void*) {}, at::kCPU),
                     c10::GetAllocator(at::kCPU),
                     /*resizable=*/true);
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(alias), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* const impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return result;
}

void* Device::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  void* const address = memory_.allocate(bytes, current_stream(), order_);
  TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "the simulated device is out of memory: ", bytes,
                   " bytes are asked for, ", memory_.allocated(), " of ", kMemory, " are in use");
  return address;
}

void Device::free(void* address) {
  if (address == nullptr) return;
  const std::lock_guard lock(mutex_);
  memory_.free(address, order_);
}

void Device::record_stream(void* address, StreamNumber stream) {
  if (address == nullptr) return;
  const std::lock_guard lock(mutex_);
  memory_.record_stream(address, stream);
}

void* Device::allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  void* const address = pinned_.allocate(bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "the simulated host has no more pinned memory");
  return address;
}

void Device::free_pinned(void* address) {
  if (address == nullptr) return;
  const std::lock_guard lock(mutex_);
  pinned_.free(address);
}

std::pair<std::size_t, std::size_t> Device::allocated_and_peak() {
  const std::lock_guard lock(mutex_);
  return {memory_.allocated(), memory_.peak()};
}

void Device::reset_peak() {
  const std::lock_guard lock(mutex_);
  memory_.reset_peak();
}

void Device::report(const Access& now, const std::vector<Access>& before, bool writes) {
  for (const Access& access : before) {
    const std::string& stream = stream_names_.at(static_cast<std::size_t>(now.moment.stream));
    const std::string& other = stream_names_.at(static_cast<std::size_t>(access.moment.stream));
    const std::string message = fmt::format(
        "RACE: {} on stream '{}' {} memory that {} on stream '{}' has used, and nothing orders it after "
        "that: "
        "stream '{}' has not waited for work {} of stream '{}'",
        now.what, stream, writes ? "writes" : "reads", access.what, other, stream, access.moment.time, other);
    fmt::print(stderr, "accel-sim: {}\n", message);
    std::fflush(stderr);
    TORCH_CHECK(only_reports(), message);
  }
}

Device::Work::Work(Device& device, StreamNumber stream, std::string name)
    : device_(device), name_(std::move(name)) {
  const std::lock_guard lock(device_.mutex_);
  moment_ = device_.order_.launch(stream);
  device_.last_work_.at(static_cast<std::size_t>(stream)) = name_;
}

void Device::Work::access(const at::Tensor& tensor, bool writes) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.device().type() != kSim) return;
  void* const address = tensor.storage().mutable_data();
  if (address == nullptr || tensor.numel() == 0) return;
  const std::lock_guard lock(device_.mutex_);
  bytes_ += tensor.numel() * tensor.element_size();
  History& history = device_.memory_.block(address).history;
  const Access now{moment_, fmt::format("{} ({})", name_, text_of(tensor))};
  const std::vector<Access> before = history.conflicts(device_.order_, moment_.stream, writes);
  history.note(now, writes);
  if (!before.empty()) device_.report(now, before, writes);
}

void Device::Work::copies_pinned(const void* address, std::size_t bytes, bool writes) {
  const std::lock_guard lock(device_.mutex_);
  const Access now{moment_, fmt::format("{} ({} bytes of pinned memory at {})", name_, bytes, address)};
  History& history = device_.pinned_.history(address);
  const std::vector<Access> before = history.conflicts(device_.order_, moment_.stream, writes);
  history.note(now, writes);
  device_.pinned_.begin_copy(address, bytes, {moment_, name_}, writes);
  if (!before.empty()) device_.report(now, before, writes);
}

void Device::Work::end(Seconds seconds) {
  const std::lock_guard lock(device_.mutex_);
  device_.timeline_.launch(moment_.stream, name_, seconds, bytes_);
}

namespace {

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const address = Device::instance().allocate(bytes);
    return {address, address, &Allocator::release, c10::Device(kSim, current_device())};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &Allocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(Device::instance().bytes_of(to), Device::instance().bytes_of(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Device::instance().record_stream(data.get(), Device::number_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override {
    const auto [allocated, peak] = Device::instance().allocated_and_peak();
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& all =
        stats.allocated_bytes.at(static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE));
    all.current = static_cast<std::int64_t>(allocated);
    all.peak = static_cast<std::int64_t>(peak);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override { Device::instance().reset_peak(); }

 private:
  static void release(void* address) { Device::instance().free(address); }
};

}  // namespace

c10::Allocator* device_allocator() {
  static Allocator allocator;
  return &allocator;
}

namespace {
const bool memory_registered = [] {
  c10::SetAllocator(kSim, device_allocator());
  return true;
}();
}  // namespace

}  // namespace accel::sim
