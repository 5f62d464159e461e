#include "core/launch/agent/attempt_end.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "core/launch/agent/message_fields.hpp"
#include "core/launch/agent/report.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;

/// The ranks of all machines that looked at theirs.
Hang hang_of_all(const std::vector<AttemptEnd>& ends) {
  Hang all;
  for (const AttemptEnd& end : ends) {
    if (!end.hang) continue;
    all.timeout_s = std::max(all.timeout_s, end.hang->timeout_s);
    all.is_ours |= end.hang->is_ours;
    all.ranks.insert(all.ranks.end(), end.hang->ranks.begin(), end.hang->ranks.end());
  }
  return all;
}

/// The failure that came first; null if no machine reports one.
const AttemptEnd* first_failure(const std::vector<AttemptEnd>& ends) {
  const AttemptEnd* first = nullptr;
  for (const AttemptEnd& end : ends) {
    if (!end.report.empty() && (first == nullptr || end.failed_at_ns < first->failed_at_ns)) first = &end;
  }
  return first;
}

/// The end of machines that report no failure.
AttemptEnd end_without_report(const std::vector<AttemptEnd>& ends) {
  const auto any = [&](ExitCode code) {
    return std::any_of(ends.begin(), ends.end(), [&](const AttemptEnd& end) { return end.code == code; });
  };
  for (const ExitCode code : {ExitCode::kInterrupted, ExitCode::kTerminated, ExitCode::kHungUp}) {
    if (any(code)) return {code, ""};
  }
  const ExitCode code = ends.front().code;
  const bool differ =
      std::any_of(ends.begin(), ends.end(), [&](const AttemptEnd& end) { return end.code != code; });
  if (!differ && code != ExitCode::kWorkerFailed) return {code, ""};
  std::string report = "a rank failed, and no machine says which";
  if (any(ExitCode::kPreempted)) report = "some machines stopped for preemption and others did not";
  // Without a worker that failed by itself, the group was stopped because others did not follow.
  if (ends.size() == 1) report = "some ranks stopped for preemption and others did not";
  return {ExitCode::kWorkerFailed, std::move(report), kUsualRestartsWithoutProgress};
}

ExitCode exit_code_in(const json& document) {
  const int code = int_in(document, "code", 0, to_int(ExitCode::kTerminated));
  if (code > to_int(ExitCode::kPreempted) && code < to_int(ExitCode::kHungUp))
    throw Error(ErrorKind::kFailure, "'code' is not an exit code");
  return static_cast<ExitCode>(code);
}

}  // namespace

AttemptEnd end_of_machine(const GroupOutcome& outcome, const std::string& host, std::int64_t began_at_ns) {
  AttemptEnd end;
  end.code = exit_code_of_group(outcome);
  end.was_interrupted = is_asked_to_end(outcome);
  if (end.code != ExitCode::kWorkerFailed) return end;
  if (outcome.hang) {
    end.hang = outcome.hang;
    end.report = report_of(*outcome.hang);
    end.failed_at_ns = outcome.hung_at_ns - began_at_ns;
    end.restarts_without_progress = kUsualRestartsWithoutProgress;
  } else if (const WorkerOutcome* cause = root_cause(outcome)) {
    end.report = failure_report(outcome, *cause, host);
    end.failed_at_ns = time_of_failure(*cause) - began_at_ns;
    end.restarts_without_progress = restarts_without_progress(outcome, *cause);
    end.found_corrupt = found_corrupt(outcome, *cause);
  }
  return end;
}

AttemptEnd end_of_all(const std::vector<AttemptEnd>& ends) {
  const AttemptEnd* first = first_failure(ends);
  AttemptEnd all = first == nullptr ? end_without_report(ends) : *first;
  if (first != nullptr) all.code = ExitCode::kWorkerFailed;
  if (all.hang) all.report = report_of(hang_of_all(ends));
  all.hang.reset();
  all.was_interrupted =
      std::any_of(ends.begin(), ends.end(), [](const AttemptEnd& end) { return end.was_interrupted; });
  return all;
}

json to_json(const AttemptEnd& end) {
  return {{"code", to_int(end.code)},
          {"report", end.report},
          {"hang", end.hang ? to_json(*end.hang) : json()},
          {"failed_at_ns", end.failed_at_ns},
          {"restarts_without_progress", end.restarts_without_progress},
          {"was_interrupted", end.was_interrupted},
          {"found_corrupt", end.found_corrupt}};
}

AttemptEnd attempt_end_from_json(const json& document) {
  AttemptEnd end;
  end.code = exit_code_in(document);
  end.report = text_in(document, "report", std::numeric_limits<std::size_t>::max());
  const json& failed_at = field(document, "failed_at_ns");
  if (!failed_at.is_number_integer()) throw Error(ErrorKind::kFailure, "'failed_at_ns' is not an integer");
  end.failed_at_ns = failed_at.get<std::int64_t>();
  end.restarts_without_progress =
      int_in(document, "restarts_without_progress", 0, kUsualRestartsWithoutProgress);
  end.was_interrupted = bool_in(document, "was_interrupted");
  end.found_corrupt = bool_in(document, "found_corrupt");
  if (const json& hang = field(document, "hang"); !hang.is_null()) end.hang = hang_from_json(hang);
  return end;
}

}  // namespace accel::launch
