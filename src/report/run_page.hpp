#pragma once

#include <string>
#include <vector>

#include "report/run_history.hpp"
#include "report/svg_chart.hpp"

namespace accel {

/// The charts of some runs: one of each quantity that a run has, with all runs in it. A run has the color of
/// its place in `runs`. A restart is a mark at the first step of the attempt.
[[nodiscard]] std::vector<Chart> charts_of(const std::vector<RunHistory>& runs);

/// The settings in which the runs differ, by dotted path. Those that say where a run is, such as
/// training.output_dir, are left out.
[[nodiscard]] std::vector<std::string> differing_settings(const std::vector<RunHistory>& runs);

/// An HTML page about some runs, at least one: a table of results, charts, where the time went, and the
/// settings in which they differ, or those of a single run. It is one document without scripts that loads
/// nothing, light or dark as the reader's system is.
[[nodiscard]] std::string run_page(const std::vector<RunHistory>& runs);

}  // namespace accel
