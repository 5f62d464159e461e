#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/loaded_config.hpp"
#include "core/config/mesh.hpp"
#include "core/config/resolve/members.hpp"
#include "core/config/resolve/resolve.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"
#include "data/needed_fields.hpp"

namespace accel::config {
namespace {

/// Sets what depends on the format of the source below `path`.
void resolve_source(const Settings& settings, const ConfigRequest& request, const std::string& path,
                    DataSource& source) {
  const DataFormat& format = data_format(source.format);
  const bool is_cut = format.sample.empty();
  const auto refuse = [&](const std::string& key, const std::string& hint) {
    if (!settings.has(key)) return;
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}' means nothing for the format '{}'",
                                               settings.where(key), key, format.name))
        .hint(hint);
  };
  const auto read = [&](const char* name, bool is_needed, auto& value) {
    const std::string key = path + name;
    if (!is_needed)
      return refuse(key,
                    is_cut ? "leave it out" : fmt::format("leave it out: {} is a sample", format.sample));
    const auto setting = settings.get<std::decay_t<decltype(value)>>(key);
    if (!setting) fail_missing(key, settings, request.file);
    value = *setting;
  };
  if (source.mixture.empty()) {
    read(".path", format.has_files, source.path);
  } else {
    const std::string key = path + ".mixture";
    if (!format.has_files) refuse(key, "leave it out");
    if (settings.has(path + ".path")) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}'{}' and '{}.path' are both set", settings.where(key), key, path))
          .hint("put the path into the mixture, with a weight");
    }
  }
  read(".sequence_length", is_cut, source.sequence_length);
  read(".vocabulary", !format.has_files, source.vocabulary);
  read(".samples", !format.has_files, source.samples);
  if (!is_cut) {
    for (const char* key : {".dtype", ".packing", ".pad_to_multiple_of"})
      refuse(path + key, fmt::format("leave it out: {} is a sample", format.sample));
  }
  source.dtype = settings.get<std::string>(path + ".dtype").value_or("");
  source.pad_to_multiple_of = settings.get<std::int64_t>(path + ".pad_to_multiple_of").value_or(0);
  if (is_cut) {
    source.packing =
        settings.get<std::string>(path + ".packing").value_or(format.has_documents ? "none" : "");
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

/// Sets the last step by training.epochs. What the run takes of the data must be known before its ranks
/// start, so that the data are opened here.
void resolve_max_steps(Config& config, const Settings& settings, const ConfigRequest& request) {
  static constexpr std::string_view kSteps = "training.max_steps";
  static constexpr std::string_view kEpochs = "training.epochs";
  TrainingConfig& training = *config.training;
  if (!settings.has(kSteps) && !settings.has(kEpochs)) fail_missing(kSteps, settings, request.file);
  if (!settings.has(kSteps)) training.max_steps = std::numeric_limits<std::int64_t>::max();
  // A plan and an evaluation take no step, and their configuration may name data that are not there.
  if (training.epochs == 0 || request.only_plans || !request.needs_training_data) return;
  const DataSource& source = training.data.train;
  const char* content = !source.mixture.empty() ? "mixture" : source.path.empty() ? "format" : "path";
  const auto data =
      blamed_on(fmt::format("training.data.train.{}", content), settings, [&] { return open_data(source); });
  const std::int64_t steps = blamed_on(kEpochs, settings, [&] {
    return plan_epoch(*data, training.data, mesh_of(config).data_size())
        .steps_until(training.epochs, 0, 0, training.gradient_accumulation_steps);
  });
  training.max_steps = std::min(training.max_steps, steps);
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
  checkpoint.every = parse_int<std::int64_t>(*text).value_or(-1);
  if (checkpoint.every >= 0) return;
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
  resolve_max_steps(config, settings, request);
  training.profile = profile_of(settings, training.max_steps);
}

void warn_of_training(const TrainingConfig& training, const Settings& settings,
                      std::vector<std::string>& warnings) {
  static constexpr std::string_view kWarmup = "training.lr_scheduler.warmup_steps";
  const SchedulerConfig& schedule = training.lr_scheduler;
  if (schedule.type == "constant" || schedule.follows_held_out_loss() ||
      schedule.warmup_steps < training.max_steps)
    return;
  warnings.push_back(fmt::format(
      "{}'{}: {}': the run ends in its warm-up, after {} steps, and never has the learning rate {}",
      settings.where(kWarmup), kWarmup, schedule.warmup_steps, training.max_steps, training.optimizer.lr));
}

}  // namespace accel::config
