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
  FlightRecord record;       ///< The record of the rank, which has no events unless it runs our worker.
  std::string state;         ///< What state_of_process() says of the process; empty if it has ended.
  std::int64_t seen_ns = 0;  ///< When the rank was seen: nanoseconds since 1970, by its machine's clock.
  double silent_s = -1;      ///< How long ago the rank wrote its last output; negative if not known.
  std::string stacks;        ///< The call stacks of all threads; empty if they were not taken.
  std::string stacks_file;   ///< The file with the whole call stacks; empty if there is none.
};

/// Returns a line for each rank, with `stack_lines` lines of its first thread's stack below it.
std::string table_of_ranks(const std::vector<RankStatus>& ranks, std::size_t stack_lines);

/// Ranks that made no progress.
struct Hang {
  double timeout_s = 0;
  bool is_ours = false;  ///< The program is our worker.
  std::vector<RankStatus> ranks;
};

/// Returns the hang as a message to another machine, with shortened events and stacks.
nlohmann::json to_json(const Hang& hang);
/// Throws nlohmann::json::exception for a document that to_json() did not write.
Hang hang_from_json(const nlohmann::json& document);

/// The report of the failure: the findings and the table.
std::string report_of(const Hang& hang);

}  // namespace accel::launch
