#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/interrupt.hpp"
#include "base/terminal.hpp"
#include "base/visible.hpp"
#include "ckpt/store/run_pulse.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "core/launch/run_story.hpp"
#include "report/metrics_follower.hpp"
#include "report/run_status.hpp"

namespace accel::cli {
namespace {

constexpr std::chrono::milliseconds kLook{500};

struct WatchOptions {
  std::string run;
  bool once = false;
};

/// Lines that are drawn over the last ones on a terminal, which is stderr.
class Drawing {
 public:
  Drawing() = default;
  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;
  ~Drawing() { clear(); }

  void show(const RunHistory& run) {
    const std::vector<std::string> lines = status_lines(run, redrawn_width(STDERR_FILENO));
    std::string text = erased_rows(rows_);
    for (const std::string& line : lines) text += visible(line) + "\n";
    rows_ = lines.size();
    write(text);
  }
  void clear() {
    if (rows_ > 0) write(erased_rows(rows_));
    rows_ = 0;
  }

 private:
  static void write(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  std::size_t rows_ = 0;
};

/// The state is empty while the run goes on.
void print(const RunHistory& run, const std::string& state, const Globals& globals) {
  if (!globals.json) {
    globals.out->line(status_line(run, state.empty()) + (state.empty() ? "" : "  " + visible(state)));
    return globals.out->flush();
  }
  nlohmann::ordered_json document;
  for (const auto& [name, points] : run.curves) document[as_utf8(name)] = points.back().value;
  if (const auto loss = run.curves.find("loss"); loss != run.curves.end())
    document["step"] = static_cast<std::int64_t>(loss->second.back().step);
  document["attempts"] = run.attempts.size();
  document["state"] = as_utf8(state.empty() ? launch::name_of(launch::RunState::kRunning) : state);
  globals.out->json(document);
  globals.out->flush();
}

ExitCode run_watch(const WatchOptions& options, const Globals& globals) {
  ckpt::RunPulse pulse(options.run);
  const bool lives = pulse.lives();
  if (!lives || options.once) require_run(options.run);
  MetricsFollower follower(options.run);
  const bool draws = !globals.json && !options.once && can_redraw(STDERR_FILENO);
  Drawing drawing;
  for (bool goes_on = lives && !options.once; goes_on;) {
    goes_on = pulse.lives();  // Before the file is read, so that the last record is not missed.
    const bool has_news = follower.read();
    if (draws && has_news) drawing.show(follower.history());
    if (!draws && has_news && goes_on) print(follower.history(), "", globals);
    for (int part = 0; goes_on && part < 5; ++part) {
      check_interrupted();
      std::this_thread::sleep_for(kLook / 5);
    }
  }
  (void)follower.read();
  drawing.clear();
  const auto story = pulse.lives() ? std::nullopt : launch::read_short_run_story(options.run);
  print(follower.history(), story ? launch::state_text(*story, launch::state_of(*story, false)) : "",
        globals);
  return ExitCode::kSuccess;
}

}  // namespace

void add_watch(CommandLine& line) {
  Command command = line.add("watch", "Show how far a run is, until it ends");
  auto options = std::make_shared<WatchOptions>();
  command.positional("RUN", options->run, "The output_dir of a training");
  command.flag("--once", options->once, "Print one line, and do not wait");
  command.does([options](const Globals& globals) { return run_watch(*options, globals); });
}

}  // namespace accel::cli
