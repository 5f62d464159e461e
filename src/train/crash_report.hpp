#pragma once

namespace accel::train {

/// Makes this process print where it is, a few stack frames on stderr, when a signal such as SIGSEGV ends it.
/// It still ends by that signal. The launcher shows these lines in its report.
void report_crashes();

}  // namespace accel::train
