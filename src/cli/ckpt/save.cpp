#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/convert/save.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/ckpt/open_source.hpp"
#include "cli/ckpt/output_report.hpp"
#include "cli/line/commands.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;

struct SaveOptions {
  std::string source;
  std::string output;
  ckpt::SaveOptions save;
  WriteOptions write;
};

// OUT is the directory that gets the checkpoint. For a full checkpoint it may also be the name of its file.
ckpt::OutputTarget target_of(const SaveOptions& options, const ckpt::SavePlan& plan) {
  ckpt::OutputTarget target;
  const fs::path output = options.output;
  target.is_file =
      options.save.type == ckpt::SaveType::kFull && output.extension() == ".bin" && !fs::is_directory(output);
  target.path = plan.folder.empty() ? output : output / plan.folder;
  target.belongs = plan.belongs;
  if (options.write.force) target.existing = AtomicFile::Existing::kReplace;
  return target;
}

ExitCode run_save(const SaveOptions& options, const Globals& globals) {
  const std::unique_ptr<ckpt::Checkpoint> source = open_source(options.source, "saving");
  const ckpt::SavePlan plan = ckpt::plan_save(*source, options.save);
  const ckpt::OutputTarget target = target_of(options, plan);
  say_what_is_left_out(*source, plan.parts_left_out);

  OutputReport report{plan.output, *source, target, target.path, plan.state.tensors.size()};
  report.details = {{"kind", plan.optimizer ? "optimizer" : "model"},
                    {"objects", plan.state.objects.size()},
                    {"left_out", plan.left_out}};
  carry_out(report, options.write, "saving", globals);
  return ExitCode::kSuccess;
}

}  // namespace

void add_save(CommandLine& line) {
  Command command = line.add("save", "Write any model or checkpoint as a full, local or sharded checkpoint");
  auto options = std::make_shared<SaveOptions>();
  command.positional("SRC", options->source,
                     "A model or an optimizer of any kind, or a directory above exactly one model");
  command.positional("OUT", options->output,
                     "Directory that gets the checkpoint; for full also a file name that ends in .bin");
  const std::map<std::string, ckpt::SaveType> types = {{"full", ckpt::SaveType::kFull},
                                                       {"local", ckpt::SaveType::kLocal},
                                                       {"sharded", ckpt::SaveType::kSharded}};
  command.choice("--type", "TYPE", types, options->save.type,
                 "full (one file), local (one file per rank) or sharded (torch.distributed.checkpoint)",
                 Command::Need::kRequired);
  command.integer("--ranks", "N", options->save.ranks,
                  "Ranks that a local or sharded checkpoint is split over (1)", 1, 100'000);
  command.integer("--model-index", "I", options->save.index, "Number of the model in Accelerate's names (0)",
                  0, 100'000);
  add_dtype(command, options->save.dtype);
  command.text("--root", "KEY", options->save.root,
               "Keys above the tensors, such as optimizer or app.model; by default those of the weights");
  command.flag("--tensors-only", options->save.tensors_only, "Leave out what is not a tensor");
  add_write_options(command, options->write);
  command.does([options](const Globals& globals) { return run_save(*options, globals); });
}

}  // namespace accel::cli
