#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/launch/hang/hang_report.hpp"

/// Flight records as tests need them.
namespace accel::launch::made {

inline constexpr std::int64_t kSecond = 1'000'000'000;
inline constexpr std::int64_t kNow = 1000 * kSecond;

/// Collective number `number` of a group of all ranks, which began `ago` seconds ago.
inline FlightEvent collective(std::uint64_t number, const char* unit, int ago, bool waits, bool ended,
                              FlightOp op = FlightOp::kAllGather) {
  FlightEvent event;
  event.number = number;
  event.op = op;
  event.begun_ns = kNow - ago * kSecond;
  event.waited_ns = waits ? event.begun_ns : 0;
  event.ended_ns = ended ? event.begun_ns : 0;
  event.in_group = number;
  event.bytes = 2048;
  event.group = {"world", 0, 1, 4, number};
  event.unit = unit;
  return event;
}

/// The same for ranks with NCCL.
inline FlightEvent enqueued(std::uint64_t number, const char* unit, int ago, bool ended = false) {
  FlightEvent event = collective(number, unit, ago, /*waits=*/true, ended);
  event.group.enqueues = true;
  return event;
}

inline FlightEvent host_sync(int ago, bool ended = false) {
  FlightEvent event;
  event.number = 98;
  event.op = FlightOp::kHostSync;
  event.begun_ns = kNow - ago * kSecond;
  event.ended_ns = ended ? event.begun_ns : 0;
  return event;
}

inline FlightEvent forward(const char* unit, int ago) {
  FlightEvent event;
  event.number = 99;
  event.begun_ns = kNow - ago * kSecond;
  event.unit = unit;
  return event;
}

inline RankStatus rank(int number, std::vector<FlightEvent> events) {
  RankStatus status;
  status.record.rank = number;
  status.record.pid = 100 + number;
  status.record.host = "a";
  status.record.step = 7;
  status.record.events = std::move(events);
  status.seen_ns = kNow;
  status.state = "sleeping in futex, 3 threads";
  return status;
}

}  // namespace accel::launch::made
