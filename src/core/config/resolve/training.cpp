#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/resolve/members.hpp"
#include "core/config/resolve/resolve.hpp"
#include "data/data_formats.hpp"

namespace accel::config {
namespace {

/// Sets what depends on the format of the source below `path`.
void resolve_source(const Settings& settings, const ConfigRequest& request, const std::string& path,
                    DataSource& source) {
  const DataFormat& format = data_format(source.format);
  if (format.sample.empty()) {
    const auto length = settings.get<std::int64_t>(path + ".sequence_length");
    if (!length) fail_missing(path + ".sequence_length", settings, request.file);
    source.sequence_length = *length;
    source.dtype = settings.get<std::string>(path + ".dtype").value_or("");
    source.packing =
        settings.get<std::string>(path + ".packing").value_or(format.has_documents ? "none" : "");
    return;
  }
  for (const char* key : {".sequence_length", ".dtype", ".packing"}) {
    if (settings.find(path + key) == nullptr) continue;
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}{}' means nothing for the format '{}'",
                                               settings.where(path + key), path, key, format.name))
        .hint(fmt::format("leave it out: {} is a sample", format.sample));
  }
}

std::optional<ProfileConfig> profile_of(const Settings& settings, std::int64_t max_steps) {
  static constexpr std::string_view kKey = "training.profile.steps";
  const auto steps = settings.get<std::vector<double>>(kKey);
  if (!steps) return std::nullopt;
  const auto is_step = [&](double step) {
    return step == std::floor(step) && step <= static_cast<double>(max_steps);
  };
  const bool good =
      steps->size() == 2 && std::all_of(steps->begin(), steps->end(), is_step) && (*steps)[0] <= (*steps)[1];
  if (!good) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}' must be the first and the last step to record, of 1 to {} "
                            "(training.max_steps); found [{}]",
                            settings.where(kKey), kKey, max_steps, fmt::join(*steps, ", ")))
        .hint("for example [5, 8]");
  }
  return ProfileConfig{static_cast<std::int64_t>((*steps)[0]), static_cast<std::int64_t>((*steps)[1])};
}

/// Fills in the options that the optimizer has.
void resolve_optimizer(const Settings& settings, OptimizerConfig& optimizer) {
  const auto* const kind = find_optimizer(optimizer.type);
  if (kind == nullptr) throw std::logic_error("the choices of the optimizer have no row for one");
  optimizer.options = complete_options(*kind, optimizer.options);
  static constexpr std::string_view kNesterov = "training.optimizer.nesterov";
  const OptimizerOptions& options = optimizer.options;
  if (optimizer.type == "sgd" && *options.nesterov && (*options.momentum == 0 || *options.dampening != 0)) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}: true' needs a momentum and no dampening with sgd",
                                               settings.where(kNesterov), kNesterov));
  }
}

/// Reads training.checkpoint.every: a number of steps, or "continuous".
void read_every(const Settings& settings, CheckpointConfig& checkpoint) {
  static constexpr std::string_view kKey = "training.checkpoint.every";
  const auto text = settings.get<std::string>(kKey);
  if (!text) return;
  checkpoint.continuously = *text == "continuous";
  if (checkpoint.continuously) return;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), checkpoint.every);
  if (error == std::errc{} && end == text->data() + text->size() && checkpoint.every >= 0) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}' must be a number of steps, 0 or greater, or 'continuous'; found '{}'",
                          settings.where(kKey), kKey, *text));
}

std::uint64_t host_memory_of(const Settings& settings) {
  static constexpr std::string_view kKey = "training.checkpoint.host_memory";
  const auto text = settings.get<std::string>(kKey);
  if (!text || *text == "auto") return 0;
  if (const auto bytes = parse_size(*text); bytes && *bytes > 0) return *bytes;
  throw Error(ErrorKind::kUsage, fmt::format("{}'{}' must be a size, such as 4GB, or 'auto'; found '{}'",
                                             settings.where(kKey), kKey, *text));
}

}  // namespace

void resolve_training(Config& config, const Settings& settings, const ConfigRequest& request) {
  TrainingConfig& training = *config.training;
  training.output_dir = std::filesystem::path("runs") / request.file.stem();
  set_members(training_keys(), settings, request.file, config);
  resolve_source(settings, request, "training.data.train", training.data.train);
  if (training.data.eval) resolve_source(settings, request, "training.data.eval", *training.data.eval);
  resolve_optimizer(settings, training.optimizer);
  read_every(settings, training.checkpoint);
  training.checkpoint.host_memory = host_memory_of(settings);
  training.profile = profile_of(settings, training.max_steps);
}

void warn_of_training(const TrainingConfig& training, const Settings& settings,
                      std::vector<std::string>& warnings) {
  static constexpr std::string_view kWarmup = "training.lr_scheduler.warmup_steps";
  const SchedulerConfig& schedule = training.lr_scheduler;
  if (schedule.type == "constant" || schedule.type == "reduce_lr_on_plateau" ||
      schedule.warmup_steps < training.max_steps)
    return;
  warnings.push_back(fmt::format(
      "{}'{}: {}': the run ends in its warm-up, after {} steps, and never has the learning rate {}",
      settings.where(kWarmup), kWarmup, schedule.warmup_steps, training.max_steps, training.optimizer.lr));
}

}  // namespace accel::config
