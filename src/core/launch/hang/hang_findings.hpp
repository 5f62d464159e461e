#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/launch/hang/hang_report.hpp"

namespace accel::launch {

/// Returns a line for each thing that holds up the run: ranks that did not join a collective in which others
/// wait, and ranks that called another one. Returns no line if nothing can be said. Waits shorter than
/// `least` are passed over: in a run that does well, some rank waits for another one at almost every moment.
///
/// A rank does not know whether a collective that it has enqueued in a stream of a GPU has ended until its
/// host waits for the GPU. If one rank has enqueued a collective and another has not, the line names the
/// first such collective. If all ranks have enqueued the same, it names the first one that no rank knows to
/// have ended. A later collective, or a kernel between the two, may be the one that does not end.
std::vector<std::string> findings(const std::vector<RankStatus>& ranks,
                                  std::chrono::nanoseconds least = std::chrono::nanoseconds(0));

/// The numbers of the ranks as a text, such as "0, 2-5".
std::string text_of_ranks(std::vector<int> ranks);

}  // namespace accel::launch
