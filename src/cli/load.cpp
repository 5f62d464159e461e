#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/convert/load.hpp"
#include "ckpt/convert/merge_check.hpp"
#include "ckpt/convert/select_tensors.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/state_root.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/commands.hpp"
#include "cli/open_source.hpp"
#include "cli/output_report.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;

struct LoadOptions {
  std::string checkpoint;
  std::string model;
  std::string output;
  WriteOptions write;
  bool partial = false;
};

std::unique_ptr<ckpt::Checkpoint> open_model(const std::string& path) {
  const ckpt::Kind kind = ckpt::kind_of(path);
  if (kind != ckpt::Kind::kTorchScript) {
    throw Error(ErrorKind::kUsage,
                fmt::format("--into needs a TorchScript file, but '{}' is {}", path, name_of(kind)))
        .hint("torch.jit.script(model).save('model.pt') writes one");
  }
  return ckpt::open_checkpoint(path);
}

// The flat state dict of the model in the checkpoint, under the names that state_dict() gives.
ckpt::OutputState state_of(const ckpt::Checkpoint& source) {
  if (is_optimizer(source)) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is an optimizer's checkpoint", source.path().string()))
        .hint("the model's is usually beside it");
  }
  ckpt::SelectedState selected = ckpt::select_tensors(source, {});
  for (const std::string& name : selected.outside) {
    log::warn(fmt::format("'{}' is not part of the model and is left out", name));
  }
  return std::move(selected.state);
}

ExitCode run_load(const LoadOptions& options, const Globals& globals) {
  const std::unique_ptr<ckpt::Checkpoint> model = open_model(options.model);
  const std::unique_ptr<ckpt::Checkpoint> source = open_source(options.checkpoint, "loading");
  const fs::path output = options.output;
  const auto missing = options.partial ? ckpt::Missing::kKeep : ckpt::Missing::kRefuse;
  ckpt::TorchScriptPlan plan =
      ckpt::plan_torchscript(output.filename().string(), *model, state_of(*source), *source, missing);
  for (const std::string& name : plan.kept) {
    log::warn(fmt::format("'{}' is not in the checkpoint and keeps the model's values", name));
  }
  ckpt::OutputPlan files;
  files.files.push_back(std::move(plan.file));
  ckpt::OutputTarget target;
  target.path = output;
  target.is_file = true;
  if (options.write.force) target.existing = AtomicFile::Existing::kReplace;
  OutputReport report{files, *source, target, output, plan.loaded.size()};
  report.details = {{"model", options.model}, {"kept", plan.kept}};
  if (options.write.dry_run) {
    print_plan(report, globals);
    return ExitCode::kSuccess;
  }
  if (options.write.force && fs::exists(output) && fs::equivalent(output, options.model)) {
    // The model will be replaced, so nothing may be wrong with it or with the checkpoint.
    ckpt::check_source(*model, globals.progress(), /*is_removed=*/true);
    ckpt::check_source(*source, globals.progress(), /*is_removed=*/false);
  }
  write_plan(report, options.write.limits, "loading", globals);
  print_result(report, globals);
  return ExitCode::kSuccess;
}

}  // namespace

void add_load(CommandLine& line) {
  Command command = line.add("load", "Put a checkpoint of any kind into a TorchScript file");
  auto options = std::make_shared<LoadOptions>();
  command.positional("CKPT", options->checkpoint,
                     "A model's checkpoint of any kind, or a directory above exactly one");
  command.text("--into", "MODEL.pt", options->model, "TorchScript file with the model; it is not changed",
               Command::Need::kRequired);
  command.text("--out", "NEW.pt", options->output, "File to write", Command::Need::kRequired);
  command.flag("--partial", options->partial,
               "Keep the model's values of parameters and buffers that the checkpoint does not have");
  add_write_options(command, options->write);
  command.does([options](const Globals& globals) { return run_load(*options, globals); });
}

}  // namespace accel::cli
