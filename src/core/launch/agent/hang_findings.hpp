#pragma once

#include <string>
#include <vector>

#include "core/launch/agent/hang_report.hpp"

namespace accel::launch {

/// Who holds up whom: the ranks that did not join a collective in which others wait, and those that called
/// another one. One finding each; none if nothing can be said.
///
/// Of a collective that was enqueued in a stream of a GPU, a rank knows no more than that it has not yet
/// waited for what comes behind it. So the first one is named that a rank has enqueued and another has not.
/// If all ranks have enqueued the same, it is the first that no rank knows to have ended, and a collective
/// behind it, or a kernel between, may be the one that does not end.
std::vector<std::string> findings(const std::vector<RankSight>& ranks);

/// "0, 2-5".
std::string text_of_ranks(std::vector<int> ranks);

}  // namespace accel::launch
