#include "core/launch/run_story.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/log.hpp"
#include "base/signal_name.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_checkpoints.hpp"

namespace accel::launch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kEndName = "run_end.json";
constexpr std::uint64_t kMostBytes = 16 << 20;
/// So many bytes of the end of metrics.jsonl are looked at.
constexpr std::uint64_t kLookedAtBytes = 1 << 20;

/// A file of a run as JSON; discarded if it is missing or something else.
json read_json(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return json::value_t::discarded;
  try {
    return parse_json_or_discard(read_text_file(path, kMostBytes));
  } catch (const Error& failure) {
    if (is_by_signal(failure.kind())) throw;
    return json::value_t::discarded;
  }
}

/// 0 if there is none; NaN for null, which stands for a number that is not finite.
double number_in(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found != object.end() && found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

std::int64_t count_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

/// Reads the last records of a step and of an evaluation from the end of metrics.jsonl.
void read_last_lines(const fs::path& path, RunStory& story) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return;
  const File file = File::open_read(path);
  const std::uint64_t bytes = std::min<std::uint64_t>(file.size(), kLookedAtBytes);
  std::string text(bytes, '\0');
  file.read_at(file.size() - bytes, std::as_writable_bytes(std::span(text)));
  const std::vector<std::string> lines = split(text, '\n');
  bool has_step = false;
  for (auto line = lines.rbegin(); line != lines.rend() && !(has_step && story.eval_loss); ++line) {
    // Most lines of the end are of steps before the last one, and need not be parsed.
    const bool is_evaluation = line->find("\"eval_loss\"") != std::string::npos;
    if (has_step && !is_evaluation) continue;
    const json record = parse_json_or_discard(*line);
    if (!record.is_object()) continue;
    if (!has_step && record.contains("stopped_early") && record.contains("why") &&
        record.at("why").is_string()) {
      story.stopped_early = record.at("why").get<std::string>();
      story.step = count_in(record, "step");
    }
    if (is_evaluation && !story.eval_loss) story.eval_loss = number_in(record, "eval_loss");
    if (has_step || !record.contains("loss")) continue;
    has_step = true;
    story.step = std::max(story.step, count_in(record, "step"));
    story.loss = number_in(record, "loss");
    story.line_time = number_in(record, "time");
    story.step_time_s = number_in(record, "step_time_s");
  }
}

std::optional<RunEnd> read_run_end(const fs::path& output_dir) {
  const json document = read_json(output_dir / kEndName);
  if (!document.is_object()) return std::nullopt;
  RunEnd end;
  end.time = number_in(document, "time");
  end.code = static_cast<ExitCode>(count_in(document, "exit_code"));
  end.step = count_in(document, "step");
  if (const auto report = document.find("report"); report != document.end() && report->is_string())
    end.report = report->get<std::string>();
  return end;
}

std::string ago(double then, double now) {
  return then > 0 ? fmt::format("{} ago", format_duration(std::max(0.0, now - then))) : "at an unknown time";
}

std::string place_of(std::int64_t step, std::int64_t max_steps) {
  return max_steps > 0 ? fmt::format("step {} of {}", step, max_steps) : fmt::format("step {}", step);
}

/// How the run stands or ended.
std::string head_of(const RunStory& story, bool lives, double now) {
  if (lives) {
    if (story.step == 0) return "running: no step is reported yet";
    const double left = story.step_time_s * static_cast<double>(story.max_steps - story.step);
    return fmt::format("running: {}, loss {:.4f}, {} left; the last line is of {}",
                       place_of(story.step, story.max_steps),
                       story.loss.value_or(std::numeric_limits<double>::quiet_NaN()),
                       format_duration(std::max(0.0, left)), ago(story.line_time, now));
  }
  if (!story.end) {
    return fmt::format("ended without a word: the launcher was killed, or its machine was lost{}",
                       story.step == 0
                           ? std::string()
                           : fmt::format("; the last line is of {}, {}",
                                         place_of(story.step, story.max_steps), ago(story.line_time, now)));
  }
  const std::string when = ago(story.end->time, now);
  if (story.end->code == ExitCode::kSuccess && !story.stopped_early.empty())
    return fmt::format("finished {}, early at {}: {}", when, place_of(story.step, story.max_steps),
                       story.stopped_early);
  if (story.end->code == ExitCode::kSuccess) return fmt::format("finished {}", when);
  if (story.end->code == ExitCode::kPreempted)
    return fmt::format("stopped on request {}, after saving", when);
  const std::string where =
      story.end->step > 0 ? " in " + place_of(story.end->step, story.max_steps) : std::string();
  if (story.end->report.empty())
    return fmt::format("ended {}{}, with exit code {}", when, where, to_int(story.end->code));
  return fmt::format("failed {}{}:", when, where);
}

}  // namespace

void write_run_end(const fs::path& output_dir, const RunEnd& end) noexcept {
  try {
    const json document = {{"time", end.time},
                           {"exit_code", to_int(end.code)},
                           {"step", end.step},
                           {"report", as_utf8(end.report)}};
    write_file_atomically(output_dir / kEndName, document.dump() + "\n");
  } catch (const std::exception& failure) {
    log::debug(fmt::format("the end of the run is not recorded: {}", failure.what()));
  }
}

void remove_run_end(const fs::path& output_dir) noexcept {
  std::error_code error;
  fs::remove(output_dir / kEndName, error);
}

RunState state_of(const RunStory& story, bool lives) {
  if (!story.end) return lives ? RunState::kRunning : RunState::kKilled;
  if (story.end->code == ExitCode::kSuccess) return RunState::kFinished;
  return story.end->code == ExitCode::kPreempted ? RunState::kStopped : RunState::kFailed;
}

const char* name_of(RunState state) {
  switch (state) {
    case RunState::kRunning:
      return "running";
    case RunState::kFinished:
      return "finished";
    case RunState::kStopped:
      return "stopped";
    case RunState::kFailed:
      return "failed";
    case RunState::kKilled:
      break;
  }
  return "killed";
}

std::string cause_of(const RunEnd& end) {
  static constexpr std::string_view kError = "  error: ";
  const std::vector<std::string> lines = split(end.report, '\n');
  const auto error = std::find_if(lines.begin(), lines.end(),
                                  [](const std::string& line) { return line.starts_with(kError); });
  if (error != lines.end()) return error->substr(kError.size());
  if (!lines.empty()) return lines.front();
  const int code = to_int(end.code);
  const char* signal = code > kSignalBase ? signal_name(code - kSignalBase) : nullptr;
  return signal == nullptr ? fmt::format("exit code {}", code) : fmt::format("SIG{}", signal);
}

std::string state_text(const RunStory& story, RunState state) {
  if (state == RunState::kFailed && story.end) return "failed: " + cause_of(*story.end);
  if (state == RunState::kFinished && !story.stopped_early.empty())
    return "finished early: " + story.stopped_early;
  return name_of(state);
}

std::optional<RunStory> read_short_run_story(const fs::path& output_dir) {
  const json config = read_json(output_dir / "config.resolved.json");
  if (!config.is_object() || !config.contains("training")) return std::nullopt;
  RunStory story;
  story.max_steps = count_in(config.at("training"), "max_steps");
  read_last_lines(output_dir / "metrics.jsonl", story);
  story.end = read_run_end(output_dir);
  return story;
}

std::optional<RunStory> read_run_story(const fs::path& output_dir) {
  std::optional<RunStory> story = read_short_run_story(output_dir);
  if (!story) return std::nullopt;
  const ckpt::RunCheckpoints checkpoints(output_dir / "checkpoints");
  if (const auto newest = ckpt::newest_whole(checkpoints).step) {
    story->checkpoint = *newest;
    story->checkpoint_path = checkpoints.path_of(*newest);
  }
  return story;
}

std::vector<std::string> lines_of(const RunStory& story, bool lives, double now) {
  std::vector<std::string> lines = {head_of(story, lives, now)};
  if (!lives && story.end) {
    for (const std::string& line : split(story.end->report, '\n')) {
      if (!line.empty()) lines.push_back("  " + line);
    }
  }
  lines.push_back(story.checkpoint == 0
                      ? "there is no checkpoint"
                      : fmt::format("the newest checkpoint is '{}', of {}", story.checkpoint_path.string(),
                                    place_of(story.checkpoint, story.max_steps)));
  return lines;
}

nlohmann::ordered_json document_of(const RunStory& story) {
  nlohmann::ordered_json document = {{"max_steps", story.max_steps},
                                     {"step", story.step},
                                     {"loss", story.loss ? json(*story.loss) : json()},
                                     {"eval_loss", nullptr},
                                     {"time", story.line_time},
                                     {"step_time_s", story.step_time_s},
                                     {"checkpoint", as_utf8(story.checkpoint_path.string())},
                                     {"checkpoint_step", story.checkpoint},
                                     {"end", nullptr}};
  if (story.eval_loss) document["eval_loss"] = *story.eval_loss;
  if (!story.stopped_early.empty()) document["stopped_early"] = as_utf8(story.stopped_early);
  if (story.end) {
    document["end"] = {{"time", story.end->time},
                       {"exit_code", to_int(story.end->code)},
                       {"step", story.end->step},
                       {"report", as_utf8(story.end->report)}};
  }
  return document;
}

}  // namespace accel::launch
