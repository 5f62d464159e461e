#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"

namespace accel::config {
namespace {

/// Reads values of the settings. A value without a default is required.
class Section {
 public:
  Section(const Settings& settings, const std::filesystem::path& file) : settings_(settings), file_(file) {}

  template <class T>
  void read(std::string_view path, T& value) const {
    if constexpr (std::is_same_v<T, std::filesystem::path>) {
      if (const auto set = settings_.get<std::string>(path)) value = *set;
    } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (const auto set = settings_.get<std::int64_t>(path)) value = static_cast<T>(*set);
    } else {
      if (const auto set = settings_.get<T>(path)) value = *set;
    }
  }

  template <class T>
  void require(std::string_view path, T& value) const {
    if (!settings_.has(path)) fail_missing(path);
    read(path, value);
  }

 private:
  [[noreturn]] void fail_missing(std::string_view path) const {
    // A null of the key, or of a section above it, asks for a default that does not exist.
    for (std::string_view section = path;; section = section.substr(0, section.rfind('.'))) {
      if (settings_.find(section) != nullptr) {
        const std::string what = section == path
                                     ? fmt::format("'{}' is null", path)
                                     : fmt::format("'{}' is missing, because '{}' is null", path, section);
        throw Error(ErrorKind::kUsage, settings_.where(section) + what).hint("it has no default");
      }
      if (section.find('.') == std::string_view::npos) break;
    }
    throw Error(ErrorKind::kUsage, fmt::format("{}: '{}' is missing", file_.string(), path))
        .hint("it has no default");
  }

  const Settings& settings_;
  const std::filesystem::path& file_;
};

DataSource source_at(const Section& section, const Settings& settings, const std::string& path) {
  DataSource source;
  section.require(path + ".format", source.format);
  section.require(path + ".path", source.path);
  if (source.format != "tensors") {
    section.require(path + ".sequence_length", source.sequence_length);
    section.read(path + ".dtype", source.dtype);
    return source;
  }
  for (const char* key : {".sequence_length", ".dtype"}) {
    if (settings.find(path + key) == nullptr) continue;
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}{}' means nothing for the format 'tensors'",
                                               settings.where(path + key), path, key))
        .hint("leave it out: a row of the file's tensors is a sample");
  }
  return source;
}

OptimizerConfig optimizer_of(const Section& section, const Settings& settings) {
  OptimizerConfig optimizer;
  section.read("training.optimizer.type", optimizer.type);
  section.read("training.optimizer.lr", optimizer.lr);
  section.read("training.optimizer.eps", optimizer.eps);
  section.read("training.optimizer.weight_decay", optimizer.weight_decay);
  section.read("training.optimizer.no_decay", optimizer.no_decay);
  if (const auto betas = settings.get<std::vector<double>>("training.optimizer.betas")) {
    if (betas->size() != 2) {
      throw Error(ErrorKind::kUsage, fmt::format("{}'training.optimizer.betas' must be two numbers, found {}",
                                                 settings.where("training.optimizer.betas"), betas->size()));
    }
    optimizer.betas = {betas->front(), betas->back()};
  }
  return optimizer;
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

CheckpointConfig checkpoint_of(const Section& section, const Settings& settings) {
  CheckpointConfig checkpoint;
  read_every(settings, checkpoint);
  section.read("training.checkpoint.every_minutes", checkpoint.every_minutes);
  section.read("training.checkpoint.total_limit", checkpoint.total_limit);
  section.read("training.checkpoint.resume", checkpoint.resume);
  if (const auto mode = settings.get<std::string>("training.checkpoint.verify_on_resume"))
    checkpoint.verify_on_resume = enum_named<VerifyOnResume>(*mode).value();
  section.read("training.checkpoint.verify", checkpoint.verify);
  section.read("training.checkpoint.async", checkpoint.asynchronous);
  checkpoint.host_memory = host_memory_of(settings);
  checkpoint.continues_on_failure = settings.get<std::string>("training.checkpoint.on_failure") == "continue";
  if (const auto type = settings.get<std::string>("fsdp_config.state_dict_type"))
    checkpoint.type = enum_named<StateDictType>(*type).value();
  section.read("training.checkpoint.adapter_only", checkpoint.adapter_only);
  section.read("training.checkpoint.adapter_names", checkpoint.adapter_names);
  checkpoint.exports_safetensors = settings.get<std::string>("training.checkpoint.export") == "safetensors";
  return checkpoint;
}

}  // namespace

TrainingConfig resolve_training(const Settings& settings, const ConfigRequest& request) {
  const Section section(settings, request.file);
  TrainingConfig training;
  section.require("training.model.path", training.model.path);
  section.read("training.model.weights", training.model.weights);
  if (const auto rename = settings.get<Texts>("training.model.rename")) {
    for (const auto& [pattern, replacement] : *rename)
      training.model.rename.push_back({pattern, replacement});
  }
  section.read("training.model.broadcast_from_rank0", training.model.broadcast_from_rank0);
  training.model.init_std = settings.get<double>("training.model.init.std");
  section.read("training.model.inputs", training.model.inputs);
  section.read("training.model.loss", training.model.loss);
  section.read("training.model.targets", training.model.targets);
  section.read("training.model.output", training.model.output);

  training.data.train = source_at(section, settings, "training.data.train");
  if (settings.has("training.data.eval"))
    training.data.eval = source_at(section, settings, "training.data.eval");
  section.read("training.data.batch_size", training.data.batch_size);
  section.read("training.data.shuffle", training.data.shuffle);
  section.read("training.data.drop_last", training.data.drop_last);
  section.read("training.data.check_labels", training.data.check_labels);

  training.optimizer = optimizer_of(section, settings);
  section.read("training.lr_scheduler.type", training.lr_scheduler.type);
  section.read("training.lr_scheduler.warmup_steps", training.lr_scheduler.warmup_steps);
  section.read("training.lr_scheduler.min_lr_ratio", training.lr_scheduler.min_lr_ratio);
  section.read("training.lr_scheduler.total_steps", training.lr_scheduler.total_steps);

  section.require("training.max_steps", training.max_steps);
  section.read("training.gradient_accumulation_steps", training.gradient_accumulation_steps);
  training.max_grad_norm = settings.get<double>("training.max_grad_norm");
  section.read("training.grad_scaler.init_scale", training.grad_scaler.init_scale);
  section.read("training.grad_scaler.growth_factor", training.grad_scaler.growth_factor);
  section.read("training.grad_scaler.backoff_factor", training.grad_scaler.backoff_factor);
  section.read("training.grad_scaler.growth_interval", training.grad_scaler.growth_interval);
  section.read("training.skip_nonfinite", training.skip_nonfinite);
  section.read("training.eval_every", training.eval_every);
  section.read("training.log_every", training.log_every);
  section.read("training.seed", training.seed);
  training.output_dir = std::filesystem::path("runs") / request.file.stem();
  section.read("training.output_dir", training.output_dir);
  training.checkpoint = checkpoint_of(section, settings);
  training.profile = profile_of(settings, training.max_steps);
  return training;
}

}  // namespace accel::config
