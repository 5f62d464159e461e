#include "core/launch/hang/hang_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "base/visible.hpp"
#include "core/launch/hang/hang_events.hpp"
#include "core/launch/hang/hang_findings.hpp"
#include "core/launch/hang/outside.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;

/// How many events of a rank other machines get, if its host waits for each collective. One that was enqueued
/// may be as old as the record.
constexpr std::size_t kSentEvents = 32;

json to_json(const FlightEvent& event) {
  return {event.number,        static_cast<int>(event.op),
          event.begun_ns,      event.waited_ns,
          event.ended_ns,      event.in_group,
          event.bytes,         event.group.name,
          event.group.first,   event.group.stride,
          event.group.count,   event.unit,
          event.group.enqueues};
}

FlightEvent event_from_json(const json& values) {
  FlightEvent event;
  event.number = values.at(0);
  event.op = static_cast<FlightOp>(values.at(1).get<int>());
  event.begun_ns = values.at(2);
  event.waited_ns = values.at(3);
  event.ended_ns = values.at(4);
  event.in_group = values.at(5);
  event.bytes = values.at(6);
  event.group = {values.at(7), values.at(8), values.at(9), values.at(10), event.in_group, values.at(12)};
  event.unit = values.at(11);
  return event;
}

/// What a rank does, or did when it ended.
std::string doing_text(const RankStatus& status) {
  const FlightRecord& record = status.record;
  const std::int64_t now_ns = status.seen_ns;
  const bool has_ended = status.state.empty();
  if (const FlightEvent* event = awaited(record))
    return fmt::format("{} in {} for {}", has_ended ? "waited" : "waits", text_of(*event),
                       ago(event->waited_ns, now_ns));
  if (const FlightEvent* event = doing(record))
    return fmt::format("{} in {} for {}", has_ended ? "was" : "is", text_of(*event),
                       ago(event->begun_ns, now_ns));
  if (record.events.empty()) return "";
  const FlightEvent& last = record.events.back();
  if (has_ended) return fmt::format("was last in {}", text_of(last));
  return fmt::format("was last in {}, {} ago", text_of(last),
                     ago(last.ended_ns != 0 ? last.ended_ns : last.begun_ns, now_ns));
}

/// Names of C++ templates may have thousands of characters.
std::string shortened(const std::string& line) {
  constexpr std::size_t kMost = 100;
  return line.size() <= kMost ? line : line.substr(0, kMost - 3) + "...";
}

json to_json(const RankStatus& status) {
  json events = json::array();
  const auto& all = status.record.events;
  const bool enqueues =
      std::any_of(all.begin(), all.end(), [](const FlightEvent& event) { return event.group.enqueues; });
  const std::size_t most = enqueues ? all.size() : kSentEvents;
  for (std::size_t i = all.size() - std::min(all.size(), most); i < all.size(); ++i)
    events.push_back(to_json(all[i]));
  return {{"rank", status.record.rank},
          {"pid", status.record.pid},
          {"host", status.record.host},
          {"step", status.record.step},
          {"events", std::move(events)},
          {"state", status.state},
          {"seen_ns", status.seen_ns},
          {"silent_s", status.silent_s},
          {"stack", fmt::format("{}", fmt::join(first_stack(status.stacks, 16), "\n"))},
          {"stacks_file", status.stacks_file}};
}

RankStatus rank_status_from_json(const json& document) {
  RankStatus status;
  status.record.rank = document.at("rank");
  status.record.pid = document.at("pid");
  status.record.host = document.at("host");
  status.record.step = document.at("step");
  for (const json& event : document.at("events")) status.record.events.push_back(event_from_json(event));
  status.state = document.at("state");
  status.seen_ns = document.at("seen_ns");
  status.silent_s = document.at("silent_s");
  for (const std::string& line : split(document.at("stack").get<std::string>(), '\n')) {
    if (!line.empty()) status.stacks += "    " + line + '\n';
  }
  status.stacks_file = document.at("stacks_file");
  return status;
}

}  // namespace

json to_json(const Hang& hang) {
  json ranks = json::array();
  for (const RankStatus& status : hang.ranks) ranks.push_back(to_json(status));
  return {{"timeout_s", hang.timeout_s}, {"is_ours", hang.is_ours}, {"ranks", std::move(ranks)}};
}

Hang hang_from_json(const json& document) {
  Hang hang{document.at("timeout_s"), document.at("is_ours"), {}};
  for (const json& status : document.at("ranks")) hang.ranks.push_back(rank_status_from_json(status));
  return hang;
}

std::string table_of_ranks(const std::vector<RankStatus>& ranks, std::size_t stack_lines) {
  std::string text;
  for (const RankStatus& status : ranks) {
    const FlightRecord& record = status.record;
    text += fmt::format("rank {}", record.rank);
    if (record.step > 0) text += fmt::format(", step {}", record.step);
    if (const std::string what = doing_text(status); !what.empty()) text += ": " + what;
    text += '\n';
    text += fmt::format("  {}, process {}: {}", visible(record.host), record.pid,
                        status.state.empty() ? "has ended" : visible(status.state));
    if (status.silent_s >= 0) text += fmt::format("; last output {:.0f} s ago", status.silent_s);
    text += '\n';
    for (const std::string& line : first_stack(status.stacks, stack_lines))
      text += fmt::format("    {}\n", shortened(visible(line)));
    if (!status.stacks_file.empty()) text += fmt::format("    all threads: {}\n", status.stacks_file);
  }
  return text;
}

std::string report_of(const Hang& hang) {
  constexpr std::size_t kStackLines = 8;
  constexpr std::size_t kShownRanks = 16;
  std::string text =
      fmt::format("the run hangs: {} for {:g} s (launch.hang_timeout)\n",
                  hang.is_ours ? "no progress" : "no rank has written anything", hang.timeout_s);
  for (const std::string& finding : findings(hang.ranks)) text += fmt::format("  {}\n", finding);
  std::vector<RankStatus> shown(
      hang.ranks.begin(),
      hang.ranks.begin() + static_cast<std::ptrdiff_t>(std::min(hang.ranks.size(), kShownRanks)));
  for (const std::string& line : split(table_of_ranks(shown, kStackLines), '\n')) {
    if (!line.empty()) text += fmt::format("  {}\n", line);
  }
  if (hang.ranks.size() > kShownRanks)
    text += fmt::format("  and {} more ranks\n", hang.ranks.size() - kShownRanks);
  text.pop_back();
  return text;
}

}  // namespace accel::launch
