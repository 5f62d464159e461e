#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/files/memory_file.hpp"
#include "base/log.hpp"
#include "ckpt/convert/load.hpp"
#include "ckpt/convert/merge_check.hpp"
#include "ckpt/convert/select_tensors.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/converted_checkpoint.hpp"
#include "ckpt/read/layout_parts.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/ckpt/open_source.hpp"
#include "cli/ckpt/output_report.hpp"
#include "cli/line/commands.hpp"
#include "import/imported_structure.hpp"
#include "structure/archive_model.hpp"
#include "structure/model_notes.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;

struct LoadOptions {
  std::string checkpoint;
  std::string model;
  std::string output;
  std::string root;
  WriteOptions write;
  bool partial = false;
};

// The model that gets the values.
struct Target {
  std::optional<MemoryFile> imported;  // The file of `model` if it is not the user's.
  std::unique_ptr<ckpt::Checkpoint> model;
  ModelNotes notes;
};

// A .pt2 file without values has no place for them either, so a TorchScript file is made of its program.
Target open_imported(const std::string& path, const fs::path& output) {
  if (output.extension() == ".pt2" || (fs::exists(output) && fs::equivalent(output, path))) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("'{}' has no place for the values of its parameters, so the model with the values "
                    "is a TorchScript file, but --out is '{}'",
                    path, output.string()))
        .hint("give --out another name, such as model.pt");
  }
  ImportedStructure model = import_structure(path, ImportedValues::kAll);
  for (const std::string& place : model.random_operators)
    log::warn(fmt::format("{}: draws random numbers in evaluation, too", place));
  Target target;
  target.imported.emplace(model.file);
  target.model = ckpt::open_checkpoint(target.imported->path());
  target.notes = parse_notes(ArchiveModel::from_bytes(std::move(model.file), path).accel_json());
  return target;
}

Target open_target(const std::string& path, const fs::path& output) {
  const ckpt::Kind kind = ckpt::kind_of(path);
  if (kind != ckpt::Kind::kTorchScript && kind != ckpt::Kind::kPt2) {
    throw Error(ErrorKind::kUsage,
                fmt::format("--into needs a model file, but '{}' is {}", path, name_of(kind)))
        .hint("a model file is made by torch.export.save, torch.jit.script or torch.jit.trace");
  }
  Target target;
  if (kind == ckpt::Kind::kTorchScript) {
    target.notes = parse_notes(ArchiveModel::open(path).accel_json());
  } else {
    std::optional<ImportedStructure> model = import_structure(path);
    if (!model->has_values) {
      model.reset();  // It may be large.
      return open_imported(path, output);
    }
    target.notes = parse_notes(ArchiveModel::from_bytes(std::move(model->file), path).accel_json());
  }
  target.model = ckpt::open_checkpoint(path);
  return target;
}

// The flat state dict of the model in the checkpoint, under the names that state_dict() gives.
ckpt::OutputState state_of(const ckpt::Checkpoint& source, const std::string& root) {
  ckpt::SelectedState selected = ckpt::select_tensors(source, {.root = root});
  if (selected.layout.is_optimizer) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is an optimizer's checkpoint", source.path().string()))
        .hint("the model's is usually beside it");
  }
  say_what_is_left_out(source, left_out_parts(source, selected.layout, ckpt::Objects::kLeftOut));
  return std::move(selected.state);
}

ExitCode run_load(const LoadOptions& options, const Globals& globals) {
  const fs::path output = options.output;
  const Target into = open_target(options.model, output);
  const std::unique_ptr<ckpt::Checkpoint> source =
      ckpt::with_tensors_of_model(open_source(options.checkpoint, "loading"), into.notes.weight_conversions);
  const auto missing = options.partial ? ckpt::Missing::kKeep : ckpt::Missing::kRefuse;
  ckpt::TorchScriptPlan plan =
      ckpt::plan_torchscript(output.filename().string(), *into.model, state_of(*source, options.root),
                             *source, missing, into.notes.non_persistent);
  for (const std::string& name : plan.kept) {
    log::warn(fmt::format("'{}' is not in the checkpoint and keeps the model's values", name));
  }
  ckpt::OutputPlan files;
  files.files.push_back(std::move(plan.file));
  const ckpt::OutputTarget target = file_target(output, options.write);
  OutputReport report{files, *source, target, output, plan.loaded.size()};
  report.details = {{"model", options.model}, {"kept", plan.kept}};
  if (!options.write.dry_run && options.write.force && fs::exists(output) &&
      fs::equivalent(output, options.model)) {
    // The model will be replaced, so nothing may be wrong with it or with the checkpoint.
    ckpt::check_source(*into.model, globals.progress(), /*is_removed=*/true);
    ckpt::check_source(*source, globals.progress(), /*is_removed=*/false);
  }
  carry_out(report, options.write, "loading", globals);
  return ExitCode::kSuccess;
}

}  // namespace

void add_load(CommandLine& line) {
  Command command = line.add("load", "Put a checkpoint of any kind into a model file");
  auto options = std::make_shared<LoadOptions>();
  command.positional("CKPT", options->checkpoint,
                     "A model's checkpoint of any kind, or a directory above exactly one");
  command.text("--into", "MODEL.pt", options->model,
               "The model, a TorchScript or .pt2 file; changed only if --out names it",
               Command::Need::kRequired);
  command.text("--out", "NEW.pt", options->output, "File to write", Command::Need::kRequired);
  command.text("--root", "KEY", options->root,
               "Keys above the tensors, such as ema or app.model; by default those of the weights");
  command.flag("--partial", options->partial,
               "Keep the model's values of parameters and buffers that the checkpoint does not have");
  add_write_options(command, options->write);
  command.does([options](const Globals& globals) { return run_load(*options, globals); });
}

}  // namespace accel::cli
