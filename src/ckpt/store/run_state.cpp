#include "ckpt/store/run_state.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/store/json_count.hpp"
#include "ckpt/store/newer_version.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr int kRunStateVersion = 2;

/// Counts beyond this are nonsense, and sums of them could overflow.
constexpr std::int64_t kMost = std::int64_t{1} << 53;

std::int64_t count_at(const json& document, const char* key, std::int64_t least = 0,
                      std::int64_t most = kMost) {
  return count_of(document.at(key), fmt::format("'{}'", key), least, most);
}

double number_at(const json& document, const char* key) {
  const auto number = document.at(key).get<double>();
  if (!std::isfinite(number) || number < 0)
    throw_corrupt(fmt::format("'{}' is {}, not a number of at least 0", key, document.at(key).dump()));
  return number;
}

/// Each epoch has a step, and an epoch ends with the micro-batch that has its last sample.
void require_possible_place(const RunState& state) {
  const DataPlace& place = state.data;
  const auto epoch = static_cast<double>(place.epoch);
  if (state.epoch < epoch || state.epoch > epoch + 1 || place.epoch > state.step)
    throw_corrupt(fmt::format("is of step {} and epoch {}, but its place in the data is in epoch {}",
                              state.step, state.epoch, place.epoch));
  const auto setting = state.settings.find(kMicroBatchSetting);
  if (setting == state.settings.end()) return;
  const std::int64_t batch =
      count_of(parse_json(setting->second), fmt::format("'{}'", kMicroBatchSetting), 1, kMost);
  if (place.samples_done > place.samples + batch)
    throw_corrupt(fmt::format("has done {} samples of an epoch of {}", place.samples_done, place.samples));
}

RunState run_state_of(const json& document) {
  RunState state;
  state.step = count_at(document, "step");
  state.optimizer_steps = count_at(document, "optimizer_steps", 0, state.step);
  if (document.contains("parameter_steps"))
    state.parameter_steps = count_at(document, "parameter_steps", 0, state.optimizer_steps);
  if (const auto names = document.find("without_gradient"); names != document.end())
    state.without_gradient = names->get<std::vector<std::string>>();
  state.epoch = number_at(document, "epoch");
  state.lr = number_at(document, "lr");
  if (!document.at("seed").is_number_unsigned()) throw_corrupt("'seed' is not a whole number of at least 0");
  state.seed = document.at("seed").get<std::uint64_t>();
  state.world_size = static_cast<int>(count_at(document, "world_size", 1, std::numeric_limits<int>::max()));
  state.skipped_in_a_row = count_at(document, "skipped_in_a_row", 0, state.step);
  state.skipped_since_log = count_at(document, "skipped_since_log", 0, state.step);
  if (document.contains("steps_since_log")) {
    state.steps_since_log = count_at(document, "steps_since_log", 0, state.step);
    state.loss_sum_since_log = document.at("loss_sum_since_log").get<double>();
  }
  if (const auto metrics = document.find("metrics_since_log"); metrics != document.end()) {
    for (const auto& [name, sum] : metrics->items())
      state.metrics_since_log[name] = {sum.at("sum").get<double>(), count_at(sum, "steps", 0, state.step)};
  }
  if (document.contains("samples_trained")) state.samples_trained = count_at(document, "samples_trained");
  const json& data = document.at("data");
  state.data.epoch = count_at(data, "epoch");
  state.data.samples_done = count_at(data, "samples_done");
  state.data.samples = count_at(data, "samples");
  state.data.sequence_length = count_at(data, "sequence_length");
  state.data.shuffle = data.at("shuffle").get<bool>();
  state.settings = document.at("settings").get<std::map<std::string, std::string>>();
  require_possible_place(state);
  if (const auto hash = document.find("frozen_hash"); hash != document.end())
    state.frozen_hash = hash->get<std::string>();
  if (const auto hook = document.find("power_sgd"); hook != document.end()) {
    state.power_sgd.emplace();
    // Each buffer draws at most a few numbers a step.
    constexpr std::int64_t kMostDraws = std::int64_t{1} << 32;
    state.power_sgd->draws = count_at(*hook, "draws", 0, kMostDraws);
    for (const json& count : hook->at("iterations"))
      state.power_sgd->iterations.push_back(count_of(count, "'iterations'", 0, kMost));
  }
  if (const auto plateau = document.find("plateau"); plateau != document.end()) {
    state.plateau.emplace();
    state.plateau->scale = number_at(*plateau, "scale");
    if (!plateau->at("best").is_null()) state.plateau->best = plateau->at("best").get<double>();
    state.plateau->num_bad_epochs = count_at(*plateau, "num_bad_epochs", 0, state.step);
    state.plateau->cooldown_counter = count_at(*plateau, "cooldown_counter", 0, kMost);
    if (plateau->contains("num_good_epochs")) {
      state.plateau->greedy = {count_at(*plateau, "num_good_epochs", 0, state.step),
                               count_at(*plateau, "warmup_counter", 0, kMost),
                               count_at(*plateau, "reset_start", 0, kMost)};
    }
    // Above 1 after a schedule that raises the rate, also if another one has followed it.
    if (!(state.plateau->scale > 0 && std::isfinite(state.plateau->scale)))
      throw_corrupt(fmt::format("has the factor {} on the learning rate", state.plateau->scale));
  }
  if (const auto early = document.find("early_stopping"); early != document.end()) {
    state.early_stopping.emplace();
    state.early_stopping->metric = early->at("metric").get<std::string>();
    if (!early->at("best").is_null()) state.early_stopping->best = early->at("best").get<double>();
    state.early_stopping->patience_counter = count_at(*early, "patience_counter", 0, state.step);
  }
  if (const auto numbers = document.find("evaluation"); numbers != document.end())
    state.evaluation = numbers->get<std::map<std::string, double>>();
  state.evaluation_is_due = document.value("evaluation_is_due", false);
  return state;
}

}  // namespace

std::string encode_run_state(const RunState& state) {
  json document = {{"version", kRunStateVersion},
                   {"step", state.step},
                   {"optimizer_steps", state.optimizer_steps},
                   {"epoch", state.epoch},
                   {"lr", state.lr},
                   {"seed", state.seed},
                   {"world_size", state.world_size},
                   {"skipped_in_a_row", state.skipped_in_a_row},
                   {"skipped_since_log", state.skipped_since_log},
                   {"loss_sum_since_log", state.loss_sum_since_log},
                   {"steps_since_log", state.steps_since_log},
                   {"data",
                    {{"epoch", state.data.epoch},
                     {"samples_done", state.data.samples_done},
                     {"samples", state.data.samples},
                     {"sequence_length", state.data.sequence_length},
                     {"shuffle", state.data.shuffle}}},
                   {"settings", state.settings}};
  if (state.parameter_steps) document["parameter_steps"] = *state.parameter_steps;
  if (!state.without_gradient.empty()) document["without_gradient"] = state.without_gradient;
  if (state.samples_trained) document["samples_trained"] = *state.samples_trained;
  for (const auto& [name, sum] : state.metrics_since_log)
    document["metrics_since_log"][name] = {{"sum", sum.sum}, {"steps", sum.steps}};
  if (state.frozen_hash) document["frozen_hash"] = *state.frozen_hash;
  if (state.power_sgd)
    document["power_sgd"] = {{"draws", state.power_sgd->draws}, {"iterations", state.power_sgd->iterations}};
  if (state.plateau) {
    document["plateau"] = {{"scale", state.plateau->scale},
                           {"best", state.plateau->best ? json(*state.plateau->best) : json(nullptr)},
                           {"num_bad_epochs", state.plateau->num_bad_epochs},
                           {"cooldown_counter", state.plateau->cooldown_counter}};
    if (const auto& greedy = state.plateau->greedy) {
      document["plateau"].update({{"num_good_epochs", greedy->num_good_epochs},
                                  {"warmup_counter", greedy->warmup_counter},
                                  {"reset_start", greedy->reset_start}});
    }
  }
  if (const auto& early = state.early_stopping) {
    document["early_stopping"] = {{"metric", early->metric},
                                  {"best", early->best ? json(*early->best) : json(nullptr)},
                                  {"patience_counter", early->patience_counter}};
  }
  if (!state.evaluation.empty()) document["evaluation"] = state.evaluation;
  if (state.evaluation_is_due) document["evaluation_is_due"] = true;
  return document.dump(2) + "\n";
}

RunState read_run_state(const std::filesystem::path& file) {
  RunState state;
  use_json_file(file, metadata_limit(), [&](const json& document) {
    if (document.at("version") == 1) {
      throw Error(ErrorKind::kUsage, "is of accel 0.1.0, which kept no place in the data to go on from")
          .hint("start a new run from its weights: training.model.weights");
    }
    if (const json& version = document.at("version"); version != kRunStateVersion) {
      // A newer accel wrote it, so that nothing is damaged.
      if (version.is_number_unsigned() && version > kRunStateVersion)
        throw newer_version(version.dump(), kRunStateVersion);
      throw_corrupt(
          fmt::format("is of version {}, and this accel reads {}", version.dump(), kRunStateVersion));
    }
    state = run_state_of(document);
  });
  return state;
}

}  // namespace accel::ckpt
