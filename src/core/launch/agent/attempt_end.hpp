#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.hpp"
#include "core/launch/agent/supervisor.hpp"
#include "core/launch/hang/hang_report.hpp"

namespace accel::launch {

/// How an attempt of a run ended: on one machine, or on all of them.
struct AttemptEnd {
  ExitCode code = ExitCode::kSuccess;
  std::string report;  ///< The report of the first failure; empty if no failure is known.
  /// The number that restarts_without_progress() in agent/report returns for the failure.
  int restarts_without_progress = 0;
  bool was_interrupted = false;  ///< Somebody asked a machine to end, so that no restart follows.
  bool found_corrupt = false;    ///< What found_corrupt() in agent/report says of the failure.
  /// When the failure happened, in nanoseconds after the attempt began on its machine.
  std::int64_t failed_at_ns = 0;
  /// The ranks of the machine, if the failure is that they made no progress. The end of all machines has only
  /// the report.
  std::optional<Hang> hang = std::nullopt;
  /// GroupOutcome::incomplete_logs of this machine.
  std::vector<std::filesystem::path> incomplete_logs = {};
  /// SIGINT, SIGTERM or SIGHUP that asked the ranks of this machine to end, or came when all had ended; 0
  /// without one.
  int asked_by = 0;
  std::int64_t done = 0;  ///< The last step that a rank of this machine has done; 0 for none.
  std::int64_t step = 0;  ///< The step in which a rank of this machine was last; 0 if none has begun.
};

/// How the part of this machine ended. `began_at_ns` is when the attempt began, in nanoseconds since 1970.
[[nodiscard]] AttemptEnd end_of_machine(const GroupOutcome& outcome, const std::string& host,
                                        std::int64_t began_at_ns);

/// The end of the attempt from those of its machines, of which there is at least one.
[[nodiscard]] AttemptEnd end_of_all(const std::vector<AttemptEnd>& ends);

/// Returns the end as a message to another machine.
[[nodiscard]] nlohmann::json to_json(const AttemptEnd& end);
/// Throws Error (kFailure) or nlohmann::json::exception for what to_json() does not write.
[[nodiscard]] AttemptEnd attempt_end_from_json(const nlohmann::json& document);

}  // namespace accel::launch
