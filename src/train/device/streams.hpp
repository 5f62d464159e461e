#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

// Streams of any accelerator, through c10's interface: a worker on CPU ranks has no CUDA loaded.

namespace accel::train {

/// The calling thread's current stream on `device`, whose type must have streams.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Returns a stream for copies, which run beside computation and collectives.
inline c10::Stream stream_for_copies(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

}  // namespace accel::train
