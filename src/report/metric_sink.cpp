#include "report/metric_sink.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 32;

double number(const Metrics& metrics, const std::string& name) { return metrics.at(name).get<double>(); }
std::int64_t count(const Metrics& metrics, const char* name) { return metrics.at(name).get<std::int64_t>(); }
std::string string_of(const Metrics& metrics, const char* name) {
  return metrics.at(name).get<std::string>();
}

}  // namespace

std::string evaluation_prefix(const std::string& set) {
  return set.empty() ? "eval_" : fmt::format("eval_{}_", set);
}

void JsonLines::open(std::int64_t step) {
  if (std::filesystem::exists(path_)) cut(step);
  out_.open(path_, std::ios::app);
  if (!out_) throw system_error("open", path_.string(), errno);
}

void JsonLines::write(const Metrics& metrics) {
  out_ << metrics.dump() << std::endl;
  if (!out_) throw system_error("write", path_.string(), errno);
}

void JsonLines::cut(std::int64_t step) const {
  const std::string text = read_text_file(path_, kMostBytes);
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line(text.data() + begin, end + 1 - begin);
    const auto document = parse_json_or_discard(line);
    const bool is_later = document.is_object() && document.contains("step") &&
                          document.at("step").is_number_integer() && document.at("step") > step;
    if (!is_later) kept += line;
    begin = end + 1;
  }
  if (kept.size() != text.size()) write_file_atomically(std::filesystem::canonical(path_), kept);
}

void LogLines::open(std::int64_t step) {
  done_before_ = step;
  start_ = std::chrono::steady_clock::now();
}

void LogLines::write(const Metrics& metrics) {
  if (metrics.contains("loss")) {
    write_step(metrics);
  } else if (metrics.contains("eval_loss") || metrics.contains("eval_set")) {
    write_evaluation(metrics);
  } else if (metrics.contains("checkpoint")) {
    const auto bytes = metrics.at("bytes").get<std::uint64_t>();
    const double seconds = number(metrics, "save_time_s");
    const double rate = static_cast<double>(bytes) / std::max(seconds, 1e-9);
    log::info(fmt::format("saved {}  ({} in {}, {}/s; training waited {})", string_of(metrics, "checkpoint"),
                          format_bytes(bytes), format_duration(seconds),
                          format_bytes(static_cast<std::uint64_t>(rate)),
                          format_duration(number(metrics, "stall_s"))));
  } else if (metrics.contains("run_time_s")) {
    write_times(metrics);
  } else if (metrics.contains("stopped_early")) {
    log::info(fmt::format("stopped early after step {} of {}: {}", count(metrics, "step"), max_steps_,
                          string_of(metrics, "why")));
  } else {
    log::warn(fmt::format("the checkpoint of step {} is not saved, and the run goes on: {}",
                          count(metrics, "step"), string_of(metrics, "checkpoint_error")));
  }
}

void LogLines::write_step(const Metrics& metrics) const {
  const std::int64_t step = count(metrics, "step");
  const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start_;
  const double left =
      gone.count() / static_cast<double>(step - done_before_) * static_cast<double>(max_steps_ - step);
  const double tokens_per_s = number(metrics, "tokens_per_s");
  std::string scale;
  if (metrics.contains("scale")) {
    scale = fmt::format("scale {:g}  ", number(metrics, "scale"));
    const std::int64_t skipped = count(metrics, "skipped");
    if (skipped > 0) scale += fmt::format("{} {} skipped  ", skipped, skipped == 1 ? "step" : "steps");
  }
  log::info(fmt::format("step {:>{}}/{}  loss {:.4f}  lr {:.2e}  grad norm {:.3f}  {}{}  {}", step,
                        fmt::formatted_size("{}", max_steps_), max_steps_, number(metrics, "loss"),
                        number(metrics, "lr"), number(metrics, "grad_norm"), scale,
                        tokens_per_s > 0 ? fmt::format("{:.0f} tokens/s", tokens_per_s)
                                         : fmt::format("{:.1f} samples/s", number(metrics, "samples_per_s")),
                        step == max_steps_ ? "done" : format_duration(left) + " left"));
}

void LogLines::write_evaluation(const Metrics& metrics) {
  const std::string set = metrics.contains("eval_set") ? string_of(metrics, "eval_set") : "";
  const std::string prefix = evaluation_prefix(set);
  std::string of_classes;
  if (metrics.contains(prefix + "perplexity")) {
    of_classes = fmt::format("  perplexity {:.4g}  accuracy {:.2f}%", number(metrics, prefix + "perplexity"),
                             number(metrics, prefix + "accuracy") * 100);
  }
  log::info(fmt::format("step {}  {}held-out loss {:.6f}{}  ({})", count(metrics, "step"),
                        set.empty() ? "" : set + " ", number(metrics, prefix + "loss"), of_classes,
                        format_duration(number(metrics, prefix + "time_s"))));
}

void LogLines::write_times(const Metrics& metrics) {
  const double whole = number(metrics, "run_time_s");
  double rest = whole;
  std::string parts;
  const auto add = [&](std::string_view name, double seconds) {
    parts += fmt::format("{}{} {} ({:.0f}%)", parts.empty() ? "" : ", ", name, format_duration(seconds),
                         100 * seconds / std::max(whole, 1e-9));
  };
  for (const auto& [key, name] : kPartsOfRun) {
    const double seconds = number(metrics, key);
    rest -= seconds;
    if (seconds > 0) add(name, seconds);
  }
  add("the rest", std::max(rest, 0.0));
  log::info(fmt::format("{} on rank 0: {}", format_duration(whole), parts));
}

}  // namespace accel
