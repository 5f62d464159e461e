#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/files/flight_record.hpp"

namespace accel::launch {

/// Where a rank stands, as seen from outside.
struct RankStatus {
  FlightRecord record;       ///< Without events for a program that is not our worker.
  std::string state;         ///< Of the process, as state_of_process() says it; empty if it has ended.
  std::int64_t seen_ns = 0;  ///< When, in nanoseconds since 1970, by the clock of its machine.
  double silent_s = -1;      ///< How long ago the rank wrote its last output; negative if not known.
  std::string stacks;        ///< All threads; empty if they were not taken.
  std::string stacks_file;   ///< Where they can be read in full; empty for nowhere.
};

/// A line for each rank, with `stack_lines` lines of its first thread's stack below it.
std::string table_of_ranks(const std::vector<RankStatus>& ranks, std::size_t stack_lines);

/// Ranks that made no progress.
struct Hang {
  double timeout_s = 0;
  bool is_ours = false;  ///< The program is our worker.
  std::vector<RankStatus> ranks;
};

/// For another machine: events and stacks are shortened.
nlohmann::json to_json(const Hang& hang);
/// Throws nlohmann::json::exception for a document that to_json() did not write.
Hang hang_from_json(const nlohmann::json& document);

/// The report of the failure: the findings and the table.
std::string report_of(const Hang& hang);

}  // namespace accel::launch
