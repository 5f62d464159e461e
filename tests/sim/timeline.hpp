#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "order.hpp"

namespace accel::sim {

/// What the simulated device can do, in units of 1/s. The defaults are an H100 SXM with NVLink, at the
/// fractions of its data sheet that large kernels reach.
struct Speeds {
  double matrix_flops_8 = 1979e12 * 0.65;  ///< Products of float8 matrices.
  double matrix_flops_16 = 989e12 * 0.65;  ///< Products of 16-bit matrices.
  double matrix_flops_32 = 60e12 * 0.8;    ///< Products of float32 matrices.
  double memory_bytes = 3.35e12 * 0.8;     ///< The device's memory.
  double host_bytes = 64e9 * 0.8;          ///< Copies to and from pinned memory, in each direction.
  double link_bytes = 450e9 * 0.8;         ///< What a rank sends to its neighbour in a ring.
  double kernel_s = 2e-6;                  ///< The least time of a kernel.
  double collective_s = 15e-6;             ///< The latency of a collective.
  double launch_s = 5e-6;                  ///< The host's time to give one piece of work to a stream.

  /// Reads `ACCEL_SIM_SPEEDS`: pairs of a name and a number, such as "link_bytes=50e9,launch_s=1e-5".
  static Speeds from_environment();
};

/// Whether the calling thread is the main one or one of autograd's.
bool is_training_thread();

/// The time of an event: when the stream that recorded it was that far.
using Seconds = double;

/// When each piece of work would have begun and ended on a device with these speeds. It is a model: its times
/// follow from the order of the work and the speeds alone, so that they are the same in each run.
///
/// If ACCEL_SIM_TRACE names a directory, all of it is written there as rank_N.json, a list of Chrome's trace
/// events.
class Timeline {
 public:
  explicit Timeline(const Speeds& speeds);
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline();

  [[nodiscard]] const Speeds& speeds() const { return speeds_; }

  /// Gives work of `seconds` to a stream.
  void launch(StreamNumber stream, const std::string& name, Seconds seconds, std::size_t bytes);
  /// Returns when the stream has done what it was given so far.
  [[nodiscard]] Seconds end_of(StreamNumber stream);
  /// Lets later work of the stream begin at `time` at the earliest. `cause` is what it waits for.
  void wait(StreamNumber stream, Seconds time, const std::string& cause);
  /// Lets the host wait until `time`.
  void wait_on_host(Seconds time, const std::string& cause);
  /// The host enqueues a collective behind the work of `current`. Returns when this rank is ready for it.
  Seconds enqueue(StreamNumber current);
  /// Gives a collective to a stream. It begins at `ready`, when the last rank is ready for it.
  void collective(StreamNumber stream, const std::string& name, Seconds ready, Seconds seconds,
                  std::size_t bytes);
  void name_stream(StreamNumber stream, const std::string& name);

 private:
  struct Lane {
    Seconds end = 0;
    Seconds ready = 0;  ///< What it waits for is done.
    std::string cause;
  };
  /// A thread of the host. The main thread and autograd's take turns, so they are one.
  struct Thread {
    StreamNumber track = 0;  ///< 0 before its first use.
    Seconds now = 0;
  };
  Lane& lane(StreamNumber stream);
  Thread& host();
  void write(std::string_view name, StreamNumber track, Seconds begin, Seconds end, std::size_t bytes);

  Speeds speeds_;
  std::vector<Lane> lanes_;
  Thread main_;
  int threads_ = 0;
  std::FILE* trace_ = nullptr;
};

}  // namespace accel::sim
