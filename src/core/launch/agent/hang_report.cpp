#include "core/launch/agent/hang_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/text.hpp"
#include "base/visible.hpp"
#include "core/launch/agent/outside.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;

/// How many events of a rank other machines get.
constexpr std::size_t kSentEvents = 32;

json to_json(const FlightEvent& event) {
  return {event.number,      static_cast<int>(event.op),
          event.begun_ns,    event.waited_ns,
          event.ended_ns,    event.in_group,
          event.bytes,       event.group.name,
          event.group.first, event.group.stride,
          event.group.count, event.unit};
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
  event.group = {values.at(7), values.at(8), values.at(9), values.at(10), event.in_group};
  event.unit = values.at(11);
  return event;
}

std::string ago(std::int64_t since_ns, std::int64_t now_ns) {
  return fmt::format("{:.0f} s", std::max(0.0, static_cast<double>(now_ns - since_ns) / 1e9));
}

/// "all-gather 57 of 'layers.3' (12 kB, group shard/0)".
std::string text_of(const FlightEvent& event) {
  std::string text(accel::text_of(event.op));
  if (event.in_group > 0) text += fmt::format(" {}", event.in_group);
  if (!event.unit.empty()) text += fmt::format(" of '{}'", visible(event.unit));
  if (event.in_group > 0)
    text += fmt::format(" ({}, group {})", format_bytes(event.bytes), visible(event.group.name));
  return text;
}

/// The collective in which the rank waits; null if there is none.
const FlightEvent* awaited(const FlightRecord& record) {
  for (auto event = record.events.rbegin(); event != record.events.rend(); ++event) {
    if (event->waited_ns != 0 && event->ended_ns == 0) return &*event;
  }
  return nullptr;
}

/// What the rank does, if it does not wait: what it has begun last and not ended, without collectives that
/// go on beside the computation.
const FlightEvent* doing(const FlightRecord& record) {
  for (auto event = record.events.rbegin(); event != record.events.rend(); ++event) {
    if (event->ended_ns == 0 && event->in_group == 0) return &*event;
  }
  return nullptr;
}

std::string doing_text(const FlightRecord& record, std::int64_t now_ns) {
  if (const FlightEvent* event = awaited(record))
    return fmt::format("waits in {} for {}", text_of(*event), ago(event->waited_ns, now_ns));
  std::string text;
  if (const FlightEvent* event = doing(record))
    text = fmt::format("is in {} for {}", text_of(*event), ago(event->begun_ns, now_ns));
  if (text.empty() && !record.events.empty()) {
    const FlightEvent& last = record.events.back();
    text = fmt::format("was last in {}, {} ago", text_of(last),
                       ago(last.ended_ns != 0 ? last.ended_ns : last.begun_ns, now_ns));
  }
  return text;
}

/// The collective of that number in the group; null if the record does not have it.
const FlightEvent* find(const FlightRecord& record, const std::string& group, std::uint64_t number) {
  for (const FlightEvent& event : record.events) {
    if (event.in_group == number && event.group.name == group) return &event;
  }
  return nullptr;
}

bool is_member(int rank, const FlightGroup& group) {
  if (group.count == 0 || group.stride == 0) return false;
  const int place = (rank - group.first) / group.stride;
  return (rank - group.first) % group.stride == 0 && place >= 0 && place < group.count;
}

std::uint64_t newest(const FlightRecord& record, const std::string& group) {
  std::uint64_t number = 0;
  for (const FlightEvent& event : record.events) {
    if (event.group.name == group) number = std::max(number, event.in_group);
  }
  return number;
}

/// The first collective of a group that two ranks have called differently; empty if there is none.
std::string first_difference(const std::string& group, const std::vector<RankSight>& ranks) {
  std::map<std::uint64_t, std::pair<int, const FlightEvent*>> first;  // By number: a rank and what it called.
  std::map<std::uint64_t, std::string> differences;
  for (const RankSight& sight : ranks) {
    for (const FlightEvent& event : sight.record.events) {
      if (event.in_group == 0 || event.group.name != group) continue;
      const auto [found, is_first] = first.try_emplace(event.in_group, sight.record.rank, &event);
      const auto& [rank, other] = found->second;
      if (is_first || (event.op == other->op && event.bytes == other->bytes && event.unit == other->unit))
        continue;
      differences.try_emplace(event.in_group,
                              fmt::format("rank {} called {}, and rank {} {}", rank, text_of(*other),
                                          sight.record.rank, text_of(event)));
    }
  }
  return differences.empty() ? "" : differences.begin()->second;
}

/// What is to be said of a collective in which ranks wait.
std::string finding_of(const FlightEvent& event, const std::vector<RankSight>& ranks) {
  if (std::string difference = first_difference(event.group.name, ranks); !difference.empty())
    return "the ranks disagree: " + difference;
  std::vector<int> waiting;
  std::vector<int> missing;
  std::int64_t longest_ns = 0;
  for (const RankSight& sight : ranks) {
    const FlightRecord& record = sight.record;
    if (!is_member(record.rank, event.group)) continue;
    const FlightEvent* own = find(record, event.group.name, event.in_group);
    if (own == nullptr && newest(record, event.group.name) < event.in_group) {
      missing.push_back(record.rank);
    } else if (own != nullptr && awaited(record) == own) {
      waiting.push_back(record.rank);
      longest_ns = std::max(longest_ns, sight.seen_ns - own->waited_ns);
    }
  }
  const std::string who =
      fmt::format("rank{} {} wait{} in {} for {}", waiting.size() == 1 ? "" : "s", text_of_ranks(waiting),
                  waiting.size() == 1 ? "s" : "", text_of(event), ago(0, longest_ns));
  if (missing.empty()) return fmt::format("all ranks joined, and it does not end: {}", who);
  return fmt::format("rank{} {} did not join: {}", missing.size() == 1 ? "" : "s", text_of_ranks(missing),
                     who);
}

/// Names of C++ templates may have thousands of characters.
std::string shortened(const std::string& line) {
  constexpr std::size_t kMost = 100;
  return line.size() <= kMost ? line : line.substr(0, kMost - 3) + "...";
}

json to_json(const RankSight& sight) {
  json events = json::array();
  const auto& all = sight.record.events;
  for (std::size_t i = all.size() - std::min(all.size(), kSentEvents); i < all.size(); ++i)
    events.push_back(to_json(all[i]));
  return {{"rank", sight.record.rank},
          {"pid", sight.record.pid},
          {"host", sight.record.host},
          {"step", sight.record.step},
          {"events", std::move(events)},
          {"state", sight.state},
          {"seen_ns", sight.seen_ns},
          {"silent_s", sight.silent_s},
          {"stack", fmt::format("{}", fmt::join(first_stack(sight.stacks, 16), "\n"))},
          {"stacks_file", sight.stacks_file}};
}

RankSight sight_from_json(const json& document) {
  RankSight sight;
  sight.record.rank = document.at("rank");
  sight.record.pid = document.at("pid");
  sight.record.host = document.at("host");
  sight.record.step = document.at("step");
  for (const json& event : document.at("events")) sight.record.events.push_back(event_from_json(event));
  sight.state = document.at("state");
  sight.seen_ns = document.at("seen_ns");
  sight.silent_s = document.at("silent_s");
  for (const std::string& line : split(document.at("stack").get<std::string>(), '\n')) {
    if (!line.empty()) sight.stacks += "    " + line + '\n';
  }
  sight.stacks_file = document.at("stacks_file");
  return sight;
}

}  // namespace

json to_json(const Hang& hang) {
  json ranks = json::array();
  for (const RankSight& sight : hang.ranks) ranks.push_back(to_json(sight));
  return {{"timeout_s", hang.timeout_s}, {"is_ours", hang.is_ours}, {"ranks", std::move(ranks)}};
}

Hang hang_from_json(const json& document) {
  Hang hang{document.at("timeout_s"), document.at("is_ours"), {}};
  for (const json& sight : document.at("ranks")) hang.ranks.push_back(sight_from_json(sight));
  return hang;
}

std::vector<std::string> findings(const std::vector<RankSight>& ranks) {
  std::vector<std::string> lines;
  for (const RankSight& sight : ranks) {
    if (sight.state.starts_with("stopped"))
      lines.push_back(fmt::format("rank {} is stopped, by a signal or a debugger", sight.record.rank));
  }
  std::set<std::tuple<std::string, std::uint64_t>> told;
  for (const RankSight& sight : ranks) {
    const FlightEvent* event = awaited(sight.record);
    if (event == nullptr || !told.emplace(event->group.name, event->in_group).second) continue;
    std::string line = finding_of(*event, ranks);
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
  }
  // Ranks that are missing somewhere come before those that wait because of others.
  std::stable_partition(lines.begin(), lines.end(),
                        [](const std::string& line) { return !line.starts_with("all"); });
  return lines;
}

std::string table_of_ranks(const std::vector<RankSight>& ranks, std::size_t stack_lines) {
  std::string text;
  for (const RankSight& sight : ranks) {
    const FlightRecord& record = sight.record;
    text += fmt::format("rank {}", record.rank);
    if (record.step > 0) text += fmt::format(", step {}", record.step);
    if (const std::string what = doing_text(record, sight.seen_ns); !what.empty()) text += ": " + what;
    text += '\n';
    text += fmt::format("  {}, process {}: {}", visible(record.host), record.pid,
                        sight.state.empty() ? "has ended" : visible(sight.state));
    if (sight.silent_s >= 0) text += fmt::format("; last output {:.0f} s ago", sight.silent_s);
    text += '\n';
    for (const std::string& line : first_stack(sight.stacks, stack_lines))
      text += fmt::format("    {}\n", shortened(visible(line)));
    if (!sight.stacks_file.empty()) text += fmt::format("    all threads: {}\n", sight.stacks_file);
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
  std::vector<RankSight> shown(hang.ranks.begin(), hang.ranks.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                            hang.ranks.size(), kShownRanks)));
  for (const std::string& line : split(table_of_ranks(shown, kStackLines), '\n')) {
    if (!line.empty()) text += fmt::format("  {}\n", line);
  }
  if (hang.ranks.size() > kShownRanks)
    text += fmt::format("  and {} more ranks\n", hang.ranks.size() - kShownRanks);
  text.pop_back();
  return text;
}

std::string text_of_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    parts.push_back(j > i ? fmt::format("{}-{}", ranks[i], ranks[j]) : fmt::format("{}", ranks[i]));
    i = j + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace accel::launch
