#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accel::sim {

/// The number of a stream in this process. The default stream of device d has the number d.
using StreamNumber = int;

/// A piece of work of a stream: the `time`-th that the stream was given.
struct Moment {
  StreamNumber stream = 0;
  std::uint64_t time = 0;
};

/// How far each stream must have come: a vector clock.
class Clock {
 public:
  void join(const Clock& other);
  void advance_to(Moment moment);
  [[nodiscard]] std::uint64_t time_of(StreamNumber stream) const;
  [[nodiscard]] bool covers(Moment moment) const { return time_of(moment.stream) >= moment.time; }

 private:
  std::vector<std::uint64_t> times_;
};

/// The order that streams, events and waits of the host enforce between pieces of work. Two pieces that it
/// does not order may run in either order on a real device, or at the same time.
class Order {
 public:
  /// Gives work to a stream. It runs after the earlier work of the stream, after what the stream has waited
  /// for, and after what the host has waited for.
  Moment launch(StreamNumber stream);
  /// Returns the clock of an event that is recorded on the stream now.
  [[nodiscard]] const Clock& record(StreamNumber stream);
  /// Orders later work of the stream after what `clock` says.
  void wait(StreamNumber stream, const Clock& clock);
  /// The host waits until the streams have come as far as `clock` says.
  void wait_on_host(const Clock& clock) { host_.join(clock); }

  /// Whether the last piece of work that `stream` was given runs after `moment`.
  [[nodiscard]] bool is_before(Moment moment, StreamNumber stream) { return at(stream).covers(moment); }
  [[nodiscard]] bool is_known_to_host(Moment moment) const { return host_.covers(moment); }
  [[nodiscard]] int streams() const { return static_cast<int>(streams_.size()); }

 private:
  Clock& at(StreamNumber stream);

  std::vector<Clock> streams_;
  Clock host_;
};

/// One access to a tensor's memory.
struct Access {
  Moment moment;
  std::string what;  ///< The operator and the tensor.
};

/// Who accessed a block of memory last. The record stays when the memory is freed and handed out again, so
/// that memory which another stream still uses is found as well.
class History {
 public:
  /// Returns the accesses that conflict with a new one of `stream` and that nothing orders before it.
  [[nodiscard]] std::vector<Access> conflicts(Order& order, StreamNumber stream, bool writes) const;
  void note(const Access& access, bool writes);

 private:
  std::vector<Access> write_;  ///< The last write, if there is one.
  std::vector<Access> reads_;  ///< The last read of each stream since then.
};

}  // namespace accel::sim
