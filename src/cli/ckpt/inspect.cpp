#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "ckpt/read/inspection.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_state.hpp"
#include "cli/ckpt/inspect_report.hpp"
#include "cli/ckpt/model_facts.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using ckpt::Inspection;
using Json = nlohmann::ordered_json;

std::optional<ModelFacts> facts_of(const Inspection& result) {
  const bool is_model = result.kind == ckpt::Kind::kTorchScript || result.kind == ckpt::Kind::kPt2;
  return is_model ? std::optional(model_facts(result.path)) : std::nullopt;
}

/// What a checkpoint of a training says of its run, if `path` is one.
std::optional<ckpt::RunState> run_of(const fs::path& path) {
  const fs::path file = path / ckpt::kRunStateName;
  // A Trainer of transformers gives the same name to a file of its own.
  if (!fs::exists(file) || !fs::exists(path / ckpt::kManifestName)) return std::nullopt;
  try {
    return ckpt::read_run_state(file);
  } catch (const Error& error) {
    // The tensors can be shown nevertheless.
    log::warn(error.message());
    return std::nullopt;
  }
}

std::optional<std::string> why_not_whole(const fs::path& path, const ckpt::RunState& run) {
  try {
    return ckpt::why_not_whole(path, run.step);
  } catch (const Error& error) {
    return error.message();
  }
}

/// Empty in a checkpoint of an earlier accel, which did not say it.
std::string layout_of(const ckpt::RunState& run) {
  const auto found = run.settings.find(ckpt::kLayoutSetting);
  return found == run.settings.end() ? "" : found->second;
}

void print_run(const fs::path& path, const ckpt::RunState& run, Results& out) {
  struct stat info {};
  const bool has_time = ::stat((path / ckpt::kRunStateName).c_str(), &info) == 0;
  const auto why = why_not_whole(path, run);
  out.line(fmt::format("{}: checkpoint of a training", path.string()));
  const std::string layout = layout_of(run);
  out.line(fmt::format("  step {}, epoch {:.3f}, lr {:.3g}, seed {}, written by {} {}{}{}; {}", run.step,
                       run.epoch, run.lr, run.seed, run.world_size, run.world_size == 1 ? "rank" : "ranks",
                       layout.empty() ? "" : fmt::format(" ({})", layout),
                       has_time ? " at " + format_time(info.st_mtim.tv_sec) : "",
                       why ? "not whole: " + *why : "whole"));
  out.line();
}

void print_json(const std::string& path, const ckpt::InspectedDirectory& found, Results& out) {
  Json document{{"path", path}, {"checkpoints", Json::array()}, {"damaged", Json::array()}};
  if (const auto run = run_of(path)) {
    document["run"] = {{"step", run->step},
                       {"epoch", run->epoch},
                       {"lr", run->lr},
                       {"seed", run->seed},
                       {"world_size", run->world_size},
                       {"layout", layout_of(*run).empty() ? Json() : Json(layout_of(*run))},
                       {"whole", !why_not_whole(path, *run)}};
  }
  for (const Inspection& result : found.checkpoints)
    document["checkpoints"].push_back(json_of(result, facts_of(result)));
  for (const ckpt::DamagedCheckpoint& damaged : found.damaged) {
    document["damaged"].push_back({{"path", damaged.path.string()}, {"text", damaged.why}});
  }
  out.json(document);
}

void print_text(const std::string& path, const ckpt::InspectedDirectory& found, const InspectOptions& options,
                Results& out) {
  if (const auto run = run_of(path)) print_run(path, *run, out);
  std::vector<const Inspection*> results;
  for (const Inspection& result : found.checkpoints) results.push_back(&result);
  // The model first.
  std::stable_partition(results.begin(), results.end(),
                        [](const Inspection* result) { return has_weights(*result); });
  for (const Inspection* result : results) {
    if (result != results.front()) out.line();
    print_inspection(*result, facts_of(*result), options, out);
  }
}

ExitCode run_inspect(const std::string& path, const InspectOptions& options, const Globals& globals) {
  const ckpt::InspectedDirectory found = ckpt::inspect_all(path);
  globals.json ? print_json(path, found, *globals.out) : print_text(path, found, options, *globals.out);
  if (found.damaged.empty()) return ExitCode::kSuccess;
  globals.out->flush();
  throw Error(ErrorKind::kMissing,
              fmt::format("'{}' holds an incomplete checkpoint: {}", path, to_string(found.damaged)))
      .hint("'accel verify' lists all that is wrong");
}

}  // namespace

void add_inspect(CommandLine& line) {
  Command command = line.add("inspect", "Show what is in a checkpoint or model; no pickle code is run");
  const auto path = std::make_shared<std::string>();
  const auto options = std::make_shared<InspectOptions>();
  command.positional("PATH", *path, "A checkpoint, a model file, or a directory of checkpoints");
  command.flag("--tensors", options->tensors, "List every tensor of the weights, object and file");
  command.flag("--optimizer", options->optimizer, "List the tensors of optimizers, too");
  command.does([=](const Globals& globals) { return run_inspect(*path, *options, globals); });
}

}  // namespace accel::cli
