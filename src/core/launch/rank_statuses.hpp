#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/launch/hang/hang_report.hpp"

namespace accel::launch {

/// Looks where the ranks of a run stand, or stood when they ended, by their flight records. `target` is the
/// output_dir of a run, a directory of logs, or the number of a process: a launcher or one of its ranks. Of a
/// directory that several machines share the ranks of this machine are found, and all once they have ended.
///
/// Throws Error: kMissing if there is neither such a directory nor such a process, or no rank in it.
std::vector<RankStatus> find_rank_statuses(const std::string& target);

/// Takes the call stacks of those that run on this machine. Each process is stopped for the time that it
/// takes to read them.
void take_stacks(std::vector<RankStatus>& statuses);

/// All that was seen of a rank, for `--json`.
nlohmann::ordered_json document_of(const RankStatus& status);

}  // namespace accel::launch
