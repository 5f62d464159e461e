#include "train/device/device_reader.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "train/device/streams.hpp"

namespace accel::train {

at::Tensor pinned_bytes(std::int64_t bytes) {
  try {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::kFailure,
                fmt::format("cannot get {} of pinned host memory to read from the device: {}",
                            format_bytes(static_cast<std::uint64_t>(bytes)), error.what_without_backtrace()));
  }
}

StagedReader::StagedReader(c10::Device device, Options options)
    : options_(std::move(options)),
      lane_(options_.lane ? *options_.lane : stream_for_copies(device)),
      stages_{Stage(device.type()), Stage(device.type())} {
  c10::Event ready(device.type());
  ready.record(current_stream(device));
  ready.block(lane_);
}

void StagedReader::require_stages(std::int64_t bytes) {
  for (Stage& stage : stages_) {
    if (!stage.memory.defined() || stage.memory.numel() < bytes) stage.memory = options_.allocate(bytes);
  }
}

void StagedReader::read(std::span<std::byte> to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  const c10::StreamGuard guard(lane_);
  const at::Tensor bytes = from.view({-1}).view(at::kByte);
  const std::int64_t all = bytes.numel();
  if (all == 0) return;
  const std::int64_t each = std::min(options_.stage_bytes, all);
  require_stages(each);
  const auto fill = [&](std::int64_t begin) {
    if (begin >= all) return;
    Stage& stage = stages_[static_cast<std::size_t>(begin / each % 2)];
    const std::int64_t count = std::min(each, all - begin);
    stage.memory.narrow(0, 0, count).copy_(bytes.narrow(0, begin, count), /*non_blocking=*/true);
    stage.filled.record(lane_);
  };
  fill(0);
  for (std::int64_t begin = 0; begin < all; begin += each) {
    fill(begin + each);
    Stage& stage = stages_[static_cast<std::size_t>(begin / each % 2)];
    stage.filled.synchronize();
    std::memcpy(to.data() + begin, stage.memory.const_data_ptr(),
                static_cast<std::size_t>(std::min(each, all - begin)));
  }
}

}  // namespace accel::train
