#include "train/device/host_storage.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "base/files/flight_record.hpp"
#include "base/text.hpp"
#include "train/device/streams.hpp"

namespace accel::train {
namespace {

class StreamCopy final : public Copy {
 public:
  explicit StreamCopy(const c10::Stream& lane) : lane_(lane), done_(lane.device_type()) {
    done_.record(lane_);
  }

  void wait_on_stream() override { done_.block(current_stream(lane_.device())); }
  void synchronize() override {
    const flight::Scope scope(FlightOp::kHostSync);
    done_.synchronize();
  }
  void then(const std::function<void()>& work) override {
    const c10::StreamGuard guard(lane_);
    work();
  }

 private:
  c10::Stream lane_;
  c10::Event done_;
};

}  // namespace

HostStorage::HostStorage(at::Device compute)
    : StorageDevice(compute), to_device_(stream_for_copies(compute)), to_host_(stream_for_copies(compute)) {}

at::Tensor HostStorage::empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU).pinned_memory(true);
  try {
    return at::empty_strided(sizes, strides, options);
  } catch (const c10::Error& error) {
    const std::size_t bytes =
        c10::elementSize(dtype) * static_cast<std::size_t>(c10::multiply_integers(sizes));
    throw Error(ErrorKind::kFailure,
                fmt::format("cannot get {} of pinned host memory for offloaded tensors: {}",
                            format_bytes(bytes), error.what_without_backtrace()))
        .hint("pinned memory is never swapped out: train on more ranks, or without fsdp_offload_params");
  }
}

// The copy waits for the work that the current stream has been given: that work may still use the memory of
// the target under another name, or may still have to compute the source.
std::unique_ptr<Copy> HostStorage::run_on(const c10::Stream& lane, const std::function<void()>& copy) const {
  c10::Event ready(lane.device_type());
  ready.record(current_stream(lane.device()));
  ready.block(lane);
  const at::NoGradGuard no_grad;
  const c10::StreamGuard guard(lane);
  copy();
  return std::make_unique<StreamCopy>(lane);
}

// Values are converted on the device, as in fully_shard. The temporary belongs to the copy's stream, which
// has read it before other work of the stream can get its memory.
std::unique_ptr<Copy> HostStorage::fetch(const at::Tensor& to, const at::Tensor& from,
                                         const Conversion& convert) {
  return run_on(to_device_, [&] {
    at::Tensor target = to;
    if (to.scalar_type() != from.scalar_type())
      target = at::empty_strided(to.sizes(), to.strides(), to.options().dtype(from.scalar_type()));
    target.copy_(from, /*non_blocking=*/true);
    if (target.is_same(to)) return;
    convert ? convert(to, target) : static_cast<void>(at::Tensor(to).copy_(target));
  });
}

std::unique_ptr<Copy> HostStorage::store(const at::Tensor& to, const at::Tensor& from) {
  return run_on(to_host_, [&] { at::Tensor(to).copy_(from.to(to.scalar_type()), /*non_blocking=*/true); });
}

// The streams of copies do not wait for what the current stream is given after the last copy. So the end of
// collectives is left to the next HostSync.
void HostStorage::synchronize() {
  const flight::Scope scope(FlightOp::kHostSync);
  to_device_.synchronize();
  to_host_.synchronize();
}

}  // namespace accel::train
