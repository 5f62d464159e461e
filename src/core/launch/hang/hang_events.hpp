#pragma once

#include <cstdint>
#include <string>

#include "base/files/flight_record.hpp"

namespace accel::launch {

/// Describes an event, such as "all-gather 57 of 'layers.3' (12 kB, group shard/0)".
std::string text_of(const FlightEvent& event);

/// The time between the two, such as "42 s".
std::string ago(std::int64_t since_ns, std::int64_t now_ns);

/// Whether the event is a collective that was enqueued in a stream of a GPU and is not known to have ended.
bool is_enqueued(const FlightEvent& event);

/// The collective in which the host of the rank waits; null if there is none.
const FlightEvent* awaited(const FlightRecord& record);

/// What the rank does, if it does not wait in a collective: what it has begun last and not ended, without
/// collectives that go on beside the computation.
const FlightEvent* doing(const FlightRecord& record);

/// The scope in which the host of the rank waits for its GPU; null if it does not.
const FlightEvent* host_sync(const FlightRecord& record);

/// The collective of that number in the group; null if the record does not have it.
const FlightEvent* find(const FlightRecord& record, const std::string& group, std::uint64_t number);

/// The number of the newest collective of the group that the record has; 0 if it has none.
std::uint64_t newest(const FlightRecord& record, const std::string& group);

}  // namespace accel::launch
