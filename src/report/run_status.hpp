#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/run_history.hpp"

namespace accel {

/// Where a run stands, as text for a terminal of `columns`: a bar with the step and the time that is left,
/// its last numbers, the curve of its loss, and its last evaluation and checkpoint. Lines of which the run
/// has nothing are left out; no line is wider than `columns` characters. `done_steps` is how many steps are
/// known to be done, if the last record may be of an earlier one.
[[nodiscard]] std::vector<std::string> status_lines(const RunHistory& run, std::size_t columns,
                                                    double done_steps = 0);

/// The same without the bar and the curve, in one line. A run that does not go on has no time left.
[[nodiscard]] std::string status_line(const RunHistory& run, bool goes_on = true);

/// Values as a row of at most `columns` blocks, the least one lowest. Of more values each block is the mean
/// of some. Values that are not finite are left out.
[[nodiscard]] std::string sparkline(const std::vector<CurvePoint>& points, std::size_t columns);

}  // namespace accel
