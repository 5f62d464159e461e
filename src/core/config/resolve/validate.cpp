#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>

#include "base/error.hpp"
#include "base/name_pattern.hpp"
#include "base/visible.hpp"
#include "core/config/loaded_config.hpp"
#include "core/config/names.hpp"
#include "core/config/resolve/resolve.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"

namespace accel::config {
namespace {

void require_file(const std::filesystem::path& path, const Settings& settings, std::string_view key) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return;
  const char* state = std::filesystem::exists(path, error) ? "is not a file" : "does not exist";
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}': '{}' {}", settings.where(key), key, path.string(), state))
      .hint(key == "training.model.path" && std::filesystem::is_directory(path, error)
                ? "`accel-export MODEL_DIRECTORY model.pt2` makes a model file of a model of transformers"
                : "relative paths are relative to the current directory");
}

void require_matches(const std::string& path, bool may_be_directory, const Settings& settings,
                     const std::string& key) {
  glob_t found{};
  const std::unique_ptr<glob_t, decltype(&::globfree)> freed(&found, &::globfree);
  if (::glob(path.c_str(), 0, nullptr, &found) != 0) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}': nothing matches '{}'", settings.where(key), key, path))
        .hint("relative paths are relative to the current directory");
  }
  for (std::size_t i = 0; i < found.gl_pathc; ++i) {
    std::error_code error;
    if (may_be_directory && std::filesystem::is_directory(found.gl_pathv[i], error)) continue;
    require_file(found.gl_pathv[i], settings, key);
  }
}

void require_data(const DataSource& source, const Settings& settings, const std::string& key) {
  const DataFormat& format = data_format(source.format);
  if (!format.has_files) return;
  for (const MixturePart& part : source.mixture)
    require_matches(part.path, format.has_directories, settings, "training.data.train.mixture");
  if (source.mixture.empty()) require_matches(source.path, format.has_directories, settings, key);
}

void check_dtype(const DataSource& source, const Settings& settings, const std::string& section) {
  if (source.dtype.empty() || data_format(source.format).has_dtype) return;
  const std::string key = section + ".dtype";
  throw Error(ErrorKind::kUsage, fmt::format("{}'{}' is for 'format: {}', not '{}'", settings.where(key), key,
                                             kDtypeFormat, source.format));
}

/// Without positions that begin anew, each document of a pack would see those before it.
void check_packing(const DataSource& source, const ModelConfig& model, const Settings& settings,
                   const std::string& section) {
  const std::string key = section + ".packing";
  if (!source.packing.empty() && !data_format(source.format).has_documents) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}' is for 'format: {}', not '{}'", settings.where(key),
                                               key, kDocumentsFormat, source.format));
  }
  const std::string multiple = section + ".pad_to_multiple_of";
  if (source.pad_to_multiple_of != 0 && !data_format(source.format).has_documents) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}' is for 'format: {}', not '{}'", settings.where(multiple), multiple,
                            kDocumentsFormat, source.format));
  }
  if (source.packing != "best_fit" ||
      std::find(model.inputs.begin(), model.inputs.end(), kPositionsField) != model.inputs.end())
    return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}: best_fit' needs a model that takes {}: without them the tokens of a "
                          "document see those of the documents before it",
                          settings.where(key), key, kPositionsField))
      .hint(fmt::format("export the model with accel-export --inputs input_ids,{0}, which shows that "
                        "documents do not see each other, and add {0} to training.model.inputs; or set "
                        "packing: none",
                        kPositionsField));
}

void check_export(const CheckpointConfig& checkpoint, const Settings& settings) {
  static constexpr std::string_view kKey = "training.checkpoint.export";
  if (!checkpoint.exports_safetensors || checkpoint.enabled()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}: safetensors' is made of the last checkpoint, and there are none",
                          settings.where(kKey), kKey))
      .hint("set training.checkpoint.every");
}

void check_adapter(const CheckpointConfig& checkpoint, const Settings& settings) {
  static constexpr std::string_view kOnly = "training.checkpoint.adapter_only";
  static constexpr std::string_view kNames = "training.checkpoint.adapter_names";
  static constexpr std::string_view kType = "fsdp_config.state_dict_type";
  if (!checkpoint.adapter_only) {
    if (!settings.has(kNames)) return;
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}' has no effect without 'training.checkpoint.adapter_only: "
                            "true'",
                            settings.where(kNames), kNames));
  }
  if (checkpoint.adapter_names.empty() ||
      std::find(checkpoint.adapter_names.begin(), checkpoint.adapter_names.end(), "") !=
          checkpoint.adapter_names.end()) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}' must list parts of names, such as lora_",
                                               settings.where(kNames), kNames));
  }
  if (checkpoint.type == StateDictType::kSharded) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}: true' needs '{}: SHARDED_STATE_DICT'", settings.where(kOnly), kOnly, kType))
      .hint("for one file with the adapter, set training.checkpoint.export: safetensors");
}

constexpr std::string_view kSets = "training.data.eval_sets";

void check_eval_sets(const DataConfig& data, const Settings& settings) {
  for (const auto& [name, path] : data.eval_sets) {
    const bool is_word = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
             c == '-' || c == '.';
    });
    if (is_word && data_format(data.eval->format).has_files) continue;
    const std::string where = fmt::format("{}'{}'", settings.where(kSets), kSets);
    if (is_word) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} are files, and the format '{}' of training.data.eval has "
                              "none",
                              where, data.eval->format));
    }
    throw Error(ErrorKind::kUsage, fmt::format("{} has the name '{}'", where, name))
        .hint("a name, which becomes a part of eval_NAME_loss, has letters, digits, '_', '-' and '.'");
  }
}

/// Checks what goes by the best evaluation.
void check_best(const TrainingConfig& training, const Settings& settings) {
  static constexpr std::string_view kMetric = "training.best_metric";
  static constexpr std::string_view kPatience = "training.early_stopping.patience";
  static constexpr std::string_view kKeep = "training.checkpoint.keep_best";
  const CheckpointConfig& checkpoint = training.checkpoint;
  const bool stops = training.early_stopping.patience > 0;
  if ((stops || checkpoint.keep_best) && (training.eval_every == 0 || !training.data.eval)) {
    const std::string_view key = stops ? kPatience : kKeep;
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}' goes by the evaluations, and there are none", settings.where(key), key))
        .hint("set training.data.eval and training.eval_every");
  }
  if (checkpoint.keep_best && (checkpoint.every == 0 || checkpoint.every % training.eval_every != 0)) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{}'{}' compares checkpoints by the evaluations of their steps, and "
                    "'training.checkpoint.every: {}' is not a multiple of 'training.eval_every: {}'",
                    settings.where(kKeep), kKeep,
                    checkpoint.continuously ? std::string("continuous") : std::to_string(checkpoint.every),
                    training.eval_every));
  }
  std::vector<std::string> metrics = {"loss"};
  if (training.model.has_classes()) metrics.emplace_back("accuracy");
  for (const auto& [name, path] : training.data.eval_sets) {
    metrics.push_back(name + "_loss");
    if (training.model.has_classes()) metrics.push_back(name + "_accuracy");
  }
  if (std::find(metrics.begin(), metrics.end(), training.best_metric) != metrics.end()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("{}'{}: {}' is not a number of the evaluations, which are {}",
                          settings.where(kMetric), kMetric, training.best_metric, fmt::join(metrics, ", ")));
}

void check_evaluation(const TrainingConfig& training, const Settings& settings) {
  static constexpr std::string_view kKey = "training.eval_every";
  check_best(training, settings);
  if (training.data.eval) return check_eval_sets(training.data, settings);
  if (!training.data.eval_sets.empty()) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}' needs training.data.eval, whose format they have",
                                               settings.where(kSets), kSets));
  }
  if (training.eval_every == 0) return;
  throw Error(ErrorKind::kUsage, fmt::format("{}'{}: {}' needs training.data.eval", settings.where(kKey),
                                             kKey, training.eval_every));
}

void check_loss(const TrainingConfig& training, const Settings& settings) {
  static constexpr std::string_view kHead = "training.model.fused_head";
  if (training.model.fused_head == "always" && training.model.loss != "cross_entropy") {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}: always' needs the loss cross_entropy, not '{}'",
                                               settings.where(kHead), kHead, training.model.loss));
  }
  static constexpr std::string_view kMean = "training.loss_mean";
  static constexpr std::string_view kWeights = "training.model.class_weights";
  if (training.loss_mean == "batches" || !training.model.has_classes()) return;
  if (training.model.class_weights.empty()) return;
  throw Error(ErrorKind::kUsage, fmt::format("{}'{}: tokens' counts labels alike, and '{}' weighs them",
                                             settings.where(kMean), kMean, kWeights))
      .hint("keep one of the two");
}

void check_metrics(const ModelConfig& model, const Settings& settings) {
  static constexpr std::string_view kMetrics = "training.model.metrics";
  for (const NamedOutput& metric : model.metrics) {
    const auto is_plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    if (metric.name.empty() || !std::all_of(metric.name.begin(), metric.name.end(), is_plain)) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}'{}' has the name '{}'; a name has letters, digits and underscores",
                              settings.where(kMetrics), kMetrics, visible(metric.name)));
    }
    // With a fused head this output is the loss, which each record has anyway.
    if (metric.output == model.output) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}'{}' has output {} as '{}', which is training.model.output",
                              settings.where(kMetrics), kMetrics, visible(metric.output), metric.name));
    }
  }
}

/// The schedules with a least learning rate.
constexpr std::array<std::string_view, 4> kWithFloor = {"cosine", "cosine_with_min_lr",
                                                        "cosine_warmup_with_min_lr", "warmup_stable_decay"};

void check_schedule(const TrainingConfig& training, const Settings& settings) {
  static constexpr std::string_view kType = "training.lr_scheduler.type";
  static constexpr std::string_view kRatio = "training.lr_scheduler.min_lr_ratio";
  static constexpr std::string_view kDecay = "training.lr_scheduler.decay_steps";
  const SchedulerConfig& schedule = training.lr_scheduler;
  const std::int64_t total = schedule.total_steps > 0 ? schedule.total_steps : training.max_steps;
  const bool has_floor = std::find(kWithFloor.begin(), kWithFloor.end(), schedule.type) != kWithFloor.end();
  if (schedule.min_lr_ratio > 0 && !has_floor) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}' is for the types {}, not '{}'", settings.where(kRatio),
                                               kRatio, fmt::join(kWithFloor, ", "), schedule.type));
  }
  if (schedule.type == "warmup_stable_decay" &&
      (schedule.decay_steps == 0 || schedule.warmup_steps + schedule.decay_steps > total)) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{}'{}: {}' must be at least 1 and, with {} steps of warm-up, not more than the "
                    "schedule's {} steps",
                    settings.where(kDecay), kDecay, schedule.decay_steps, schedule.warmup_steps, total));
  }
  if (schedule.type == "polynomial" &&
      (schedule.lr_end >= training.optimizer.lr || schedule.warmup_steps >= total)) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{}'{}: polynomial' needs an 'lr_end' below the learning rate {}, and found {}, and "
                    "a warm-up shorter than its {} steps, and found {}",
                    settings.where(kType), kType, training.optimizer.lr, schedule.lr_end, total,
                    schedule.warmup_steps));
  }
  if (schedule.follows_held_out_loss() && (training.eval_every == 0 || !training.data.eval)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}: {}' follows the held-out loss, and there is no evaluation",
                            settings.where(kType), kType, schedule.type))
        .hint("set training.data.eval and training.eval_every");
  }
}

void check_weights(const ModelConfig& model, const Settings& settings, const ConfigRequest& request) {
  static constexpr std::string_view kWeights = "training.model.weights";
  static constexpr std::string_view kInit = "training.model.init.std";
  static constexpr std::string_view kRename = "training.model.rename";
  if (model.weights.empty() && !model.rename.empty()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}' has no effect without '{}'", settings.where(kRename), kRename, kWeights));
  }
  for (const Rename& rule : model.rename)
    blamed_on(kRename, settings, [&] { NamePattern(rule.pattern).check_replacement(rule.replacement); });
  if (model.weights.empty()) return;
  if (model.init_std) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}'{}' contradicts '{}'", settings.where(kInit), kInit, kWeights))
        .hint("keep one of the two");
  }
  if (!request.only_plans && !std::filesystem::exists(model.weights)) {
    throw Error(ErrorKind::kUsage, fmt::format("{}'{}': '{}' does not exist", settings.where(kWeights),
                                               kWeights, model.weights.string()));
  }
}

}  // namespace

void validate_training(const Config& config, const Settings& settings, const ConfigRequest& request) {
  const TrainingConfig& training = *config.training;
  check_export(training.checkpoint, settings);
  check_adapter(training.checkpoint, settings);
  check_evaluation(training, settings);
  check_schedule(training, settings);
  check_loss(training, settings);
  check_metrics(training.model, settings);
  check_sequence(config, settings);
  require_file(training.model.path, settings, "training.model.path");
  check_weights(training.model, settings, request);
  check_dtype(training.data.train, settings, "training.data.train");
  check_packing(training.data.train, training.model, settings, "training.data.train");
  if (training.data.eval) {
    check_dtype(*training.data.eval, settings, "training.data.eval");
    check_packing(*training.data.eval, training.model, settings, "training.data.eval");
  }
  if (request.only_plans) return;
  if (request.needs_training_data) require_data(training.data.train, settings, "training.data.train.path");
  if (!training.data.eval) return;
  for (const auto& [name, source] : training.data.held_out())
    require_data(source, settings, name.empty() ? "training.data.eval.path" : std::string(kSets));
}

}  // namespace accel::config
