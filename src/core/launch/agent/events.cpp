#include "core/launch/agent/events.hpp"

#include <nlohmann/json.hpp>

#include "base/files/flight_record.hpp"

namespace accel::launch {
namespace {

constexpr auto kCheckpointInterval = std::chrono::milliseconds(500);

}  // namespace

std::string event_line(const char* type, const nlohmann::ordered_json& fields) {
  constexpr double kSecond = 1e9;
  nlohmann::ordered_json event = {{"type", type},
                                  {"time", static_cast<double>(nanoseconds_since_1970()) / kSecond}};
  event.update(fields);
  return event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

CheckpointWatch::CheckpointWatch(const LaunchPlan& plan) {
  if (!plan.writes_events || !plan.catches_stop_signals || plan.workers.empty()) return;
  if (plan.workers.front().rank == 0) record_ = plan.workers.front().flight_record;
}

std::optional<CheckpointWatch::Clock::time_point> CheckpointWatch::deadline() const {
  return record_.empty() ? std::nullopt : std::optional(next_);
}

std::string CheckpointWatch::serve(bool now) {
  if (record_.empty() || (!now && Clock::now() < next_)) return "";
  next_ = Clock::now() + kCheckpointInterval;
  const auto progress = read_flight_progress(record_);
  if (!progress || progress->checkpoint == last_) return "";
  last_ = progress->checkpoint;
  return event_line("checkpoint", {{"step", last_}});
}

}  // namespace accel::launch
