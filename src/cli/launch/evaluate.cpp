#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "base/log.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_checkpoints.hpp"
#include "ckpt/store/run_state.hpp"
#include "cli/launch/launch_flags.hpp"
#include "cli/line/build_info.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "cli/output/table.hpp"
#include "core/config/resolve/load_config.hpp"
#include "core/launch/agent/scratch.hpp"
#include "core/launch/launch.hpp"
#include "data/formats/data_formats.hpp"
#include "preflight/preflight.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct EvaluateOptions {
  std::string config;
  std::string checkpoint;
  std::vector<std::string> data;
  LaunchFlags flags;
};

/// Whether the command line sets a key.
bool is_from_flag(const config::LoadedConfig& loaded, std::string_view key) {
  const config::Setting* setting = loaded.settings.find(key);
  return setting != nullptr && setting->origin.layer == config::Origin::Layer::kFlag;
}

/// The newest whole checkpoint of the run in `output_dir`; empty if there is none.
fs::path newest_of(const fs::path& output_dir) {
  const ckpt::RunCheckpoints checkpoints(output_dir / "checkpoints");
  const auto step = ckpt::newest_whole(checkpoints).step;
  return step ? checkpoints.path_of(*step) : fs::path();
}

/// Makes the model have the weights of `path`: a checkpoint of a training, the directory of a run, whose
/// newest one is taken, or any other weights. Returns what is taken, for messages.
std::string take_weights(const fs::path& path, config::TrainingConfig& training) {
  if (!fs::exists(path))
    throw Error(ErrorKind::kUsage, fmt::format("CHECKPOINT: '{}' does not exist", path.string()));
  const fs::path newest = fs::is_directory(path / "checkpoints") ? newest_of(path) : fs::path();
  const fs::path taken = newest.empty() ? path : newest;
  if (fs::exists(taken / ckpt::kRunStateName)) {
    training.checkpoint.resume_from = fs::canonical(taken);
  } else {
    training.model.weights = taken;
    training.model.init_std.reset();
  }
  return taken.string();
}

/// The sets of held-out data: those that the user names, in the format of the configuration's, or the
/// configuration's own.
std::vector<config::HeldOutData> sources_of(const EvaluateOptions& options,
                                            const config::TrainingConfig& training) {
  const config::DataSource& of_config = training.data.eval ? *training.data.eval : training.data.train;
  if (options.data.empty() && !training.data.eval) {
    throw Error(ErrorKind::kUsage, fmt::format("{}: there is no training.data.eval", options.config))
        .hint("add it, or name a file of the format of training.data.train: --data FILE");
  }
  if (options.data.empty()) return training.data.held_out();
  if (!data_format(of_config.format).has_files) {
    throw Error(ErrorKind::kUsage, fmt::format("--data {}: the format of the configuration's data is '{}', "
                                               "which has no files",
                                               options.data.front(), of_config.format))
        .hint("--set training.data.eval.format=FORMAT, with the keys that it needs");
  }
  std::vector<config::HeldOutData> sources;
  for (const std::string& path : options.data) {
    sources.push_back({"", of_config});
    sources.back().source.path = path;
    sources.back().source.mixture.clear();
  }
  return sources;
}

/// Evaluates on `data` in `directory`, which nobody else uses.
Json evaluate(config::LoadedConfig loaded, const config::HeldOutData& data, const fs::path& directory,
              bool begins, const Globals& globals) {
  config::TrainingConfig& training = *loaded.config.training;
  globals.signals->interrupt();  // The launch before has closed them.
  training.only_evaluates = true;
  training.data.eval = data.source;
  training.data.eval_sets.clear();
  training.output_dir = directory;
  training.profile.reset();
  fs::create_directory(directory);
  const fs::path resumed = training.checkpoint.resume_from;
  training.checkpoint = {};
  training.checkpoint.resume = "none";
  training.checkpoint.resume_from = resumed;
  loaded.config.launch.log_dir.clear();  // A training may have it.
  // A training may have the port that the configuration asks for.
  if (!is_from_flag(loaded, "main_process_port")) loaded.config.launch.main_process_port = 0;
  loaded.config.launch.max_restarts = 0;
  if (loaded.config.launch.preflight) preflight(loaded, {.begins = begins, .has_model = true});
  launch::LaunchRequest request;
  request.loaded = std::move(loaded);
  request.keeps_stdout = true;
  request.hides_output = globals.quiet;
  request.signals = globals.signals;
  request.version = fmt::format("{} ({})", kBuildInfo.version, kBuildInfo.commit);
  const ExitCode code = launch::launch(std::move(request), environment_variable);
  if (code != ExitCode::kSuccess) throw Error(ErrorKind::kWorker, "the evaluation was stopped");
  Json result = {{"data", data.source.path.empty() ? data.source.format : data.source.path}};
  if (!data.name.empty()) result["set"] = data.name;
  result.update(Json::parse(read_text_file(directory / "evaluation.json")));
  return result;
}

void print_text(const std::string& weights, const std::vector<Json>& results, Results& out) {
  out.line(fmt::format("{}:", weights));
  const auto text = [](const Json& result, const char* name, double factor, const char* unit) {
    const auto found = result.find(name);
    if (found == result.end()) return std::string("-");
    return found->is_string() ? found->get<std::string>()
                              : fmt::format("{:.6g}{}", found->get<double>() * factor, unit);
  };
  std::vector<std::vector<std::string>> rows = {{"DATA", "SAMPLES", "LOSS", "PERPLEXITY", "ACCURACY"}};
  for (const Json& result : results) {
    std::string data = result.at("data").get<std::string>();
    if (result.contains("set")) data = fmt::format("{} ({})", result.at("set").get<std::string>(), data);
    rows.push_back({std::move(data), std::to_string(result.at("samples").get<std::int64_t>()),
                    text(result, "loss", 1, ""), text(result, "perplexity", 1, ""),
                    text(result, "accuracy", 100, "%")});
  }
  out.table(std::move(rows), {"SAMPLES", "LOSS", "PERPLEXITY", "ACCURACY"});
}

ExitCode run_evaluate(const EvaluateOptions& options, const Globals& globals) {
  config::ConfigRequest request = options.flags.request(options.config);
  request.command = "evaluate";
  request.needs_training_data = false;
  config::LoadedConfig loaded = config::load_config(request);
  if (loaded.config.launch.num_machines > 1) {
    throw Error(ErrorKind::kUsage, "an evaluation runs on one machine, and num_machines is more")
        .hint("--num-machines 1 --num-processes N");
  }
  for (const std::string& warning : loaded.warnings) log::warn(warning);
  if (is_from_flag(loaded, "launch.max_restarts"))
    log::warn("--max-restarts has no effect: an evaluation that fails is not started again");
  config::TrainingConfig& training = *loaded.config.training;
  const std::vector<config::HeldOutData> sources = sources_of(options, training);
  fs::path chosen =
      options.checkpoint.empty() ? newest_of(training.output_dir) : fs::path(options.checkpoint);
  const std::string& resume = training.checkpoint.resume;
  if (chosen.empty() && resume != "auto" && resume != "none") chosen = resume;
  const std::string weights =
      chosen.empty() ? "the weights of the configuration" : take_weights(chosen, training);
  log::info(fmt::format("evaluating {}", weights));
  const bool begins = training.checkpoint.resume_from.empty();
  const launch::Scratch scratch(launch::temporary_folder(environment_variable));
  std::vector<Json> results;
  for (const config::HeldOutData& data : sources) {
    const fs::path directory = scratch.path() / fmt::format("evaluation_{}", results.size());
    results.push_back(evaluate(loaded, data, directory, begins, globals));
  }
  if (globals.json) {
    globals.out->json({{"type", "evaluation"}, {"weights", weights}, {"results", results}});
  } else {
    print_text(weights, results, *globals.out);
  }
  return ExitCode::kSuccess;
}

}  // namespace

void add_evaluate(CommandLine& line) {
  Command command = line.add(
      "evaluate", "Compute held-out loss, perplexity and accuracy of a checkpoint or any weights",
      "\nCHECKPOINT is a checkpoint or the directory of a training, or weights of any kind. Without it the "
      "newest checkpoint of the configuration's output_dir is taken, or the weights with which its training "
      "would begin. Nothing is written there. The other flags are those of launch.\n");
  const auto options = std::make_shared<EvaluateOptions>();
  command.positional("config", options->config, "The configuration", Command::Need::kRequired, "CONFIG.yaml");
  command.positional("checkpoint", options->checkpoint, "The weights", Command::Need::kOptional,
                     "CHECKPOINT");
  command.texts("--data", "FILE", options->data,
                "Evaluate on FILE instead of training.data.eval; may be repeated");
  options->flags.add_to(command);
  command.does([options](const Globals& globals) { return run_evaluate(*options, globals); });
}

}  // namespace accel::cli
