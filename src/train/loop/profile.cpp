#include "train/loop/profile.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/flight_record.hpp"
#include "base/log.hpp"

namespace accel::train {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

/// The profiler has a kind of activity for each type of device whose kernels it can record.
std::set<ActivityType> activities_on(at::Device device) {
  switch (device.type()) {
    case at::DeviceType::CUDA:
      return {ActivityType::CPU, ActivityType::CUDA};
    case at::DeviceType::XPU:
      return {ActivityType::CPU, ActivityType::XPU};
    case at::DeviceType::HPU:
      return {ActivityType::CPU, ActivityType::HPU};
    case at::DeviceType::PrivateUse1:
      return {ActivityType::CPU, ActivityType::PrivateUse1};
    default:
      return {ActivityType::CPU};
  }
}

}  // namespace

StepProfiler::StepProfiler(const std::optional<config::ProfileConfig>& config,
                           std::filesystem::path directory, int rank, at::Device device)
    : config_(config), directory_(std::move(directory)), rank_(rank), device_(device) {}

StepProfiler::~StepProfiler() {
  if (!recording_) return;
  try {
    (void)profiler::disableProfiler();
  } catch (const std::exception& error) {
    log::warn(fmt::format("the profiler of rank {} could not be stopped: {}", rank_, error.what()));
  }
}

void StepProfiler::begin_step(std::int64_t step) {
  if (!config_ || step != config_->first_step) return;
  make_directories(directory_);
  const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true);
  profiler::prepareProfiler(config, activities_on(device_));
  profiler::enableProfiler(config, activities_on(device_), {});
  recording_ = true;
}

std::optional<std::filesystem::path> StepProfiler::end_step(std::int64_t step) {
  if (!recording_ || step != config_->last_step) return std::nullopt;
  std::filesystem::path path = directory_ / fmt::format("rank_{}.json", rank_);
  write(path);
  return path;
}

void StepProfiler::write(const std::filesystem::path& path) {
  recording_ = false;
  // The last kernels of the step may still be running, and would be missing in the trace.
  if (!device_.is_cpu()) {
    const flight::HostSync sync(true);
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
  const auto result = profiler::disableProfiler();
  const std::filesystem::path unfinished = path.string() + ".incomplete";
  std::error_code error;
  std::filesystem::remove(unfinished, error);
  result->save(unfinished.string());
  // The profiler reports no failure to write.
  const auto bytes = std::filesystem::file_size(unfinished, error);
  if (error || bytes == 0) {
    throw Error(ErrorKind::kFailure,
                fmt::format("the profile of rank {} could not be written to '{}'", rank_, path.string()))
        .hint("is there space left on the device?");
  }
  std::filesystem::rename(unfinished, path);
}

}  // namespace accel::train
