#include "core/launch/hang/hang_events.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "base/visible.hpp"

namespace accel::launch {

std::string text_of(const FlightEvent& event) {
  std::string text(accel::text_of(event.op));
  if (event.in_group > 0) text += fmt::format(" {}", event.in_group);
  if (!event.unit.empty()) text += fmt::format(" of '{}'", visible(event.unit));
  if (event.in_group > 0)
    text += fmt::format(" ({}, group {})", format_bytes(event.bytes), visible(event.group.name));
  return text;
}

std::string ago(std::int64_t since_ns, std::int64_t now_ns) {
  return fmt::format("{:.0f} s", std::max(0.0, static_cast<double>(now_ns - since_ns) / 1e9));
}

bool is_enqueued(const FlightEvent& event) { return event.group.enqueues && event.ended_ns == 0; }

const FlightEvent* awaited(const FlightRecord& record) {
  for (auto event = record.events.rbegin(); event != record.events.rend(); ++event) {
    if (event->waited_ns != 0 && event->ended_ns == 0 && !event->group.enqueues) return &*event;
  }
  return nullptr;
}

const FlightEvent* doing(const FlightRecord& record) {
  for (auto event = record.events.rbegin(); event != record.events.rend(); ++event) {
    if (event->ended_ns == 0 && event->in_group == 0) return &*event;
  }
  return nullptr;
}

const FlightEvent* host_sync(const FlightRecord& record) {
  const FlightEvent* const event = doing(record);
  return event != nullptr && event->op == FlightOp::kHostSync ? event : nullptr;
}

const FlightEvent* find(const FlightRecord& record, const std::string& group, std::uint64_t number) {
  for (const FlightEvent& event : record.events) {
    if (event.in_group == number && event.group.name == group) return &event;
  }
  return nullptr;
}

std::uint64_t newest(const FlightRecord& record, const std::string& group) {
  std::uint64_t number = 0;
  for (const FlightEvent& event : record.events) {
    if (event.group.name == group) number = std::max(number, event.in_group);
  }
  return number;
}

}  // namespace accel::launch
