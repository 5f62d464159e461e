#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/pt2/archive.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/ckpt/output_report.hpp"
#include "cli/line/commands.hpp"
#include "import/plan_import.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;

struct ImportOptions {
  std::string model;
  std::string output;
  WriteOptions write;
};

ExitCode run_import(const ImportOptions& options, const Globals& globals) {
  const ckpt::Kind kind = ckpt::kind_of(options.model);
  if (kind != ckpt::Kind::kPt2) {
    throw Error(ErrorKind::kUsage, fmt::format("accel import needs a file of torch.export, but '{}' is {}",
                                               options.model, name_of(kind)))
        .hint("torch.export.save(torch.export.export(model, ...), 'model.pt2') writes one");
  }
  const std::unique_ptr<ckpt::Checkpoint> source = ckpt::open_checkpoint(options.model);
  const fs::path output = options.output;
  const ckpt::Pt2Archive archive(options.model);
  ImportPlan plan = plan_import(output.filename().string(), archive);
  for (const std::string& place : plan.random_operators)
    log::warn(fmt::format("{}: draws random numbers in evaluation, too", place));
  ckpt::OutputPlan files;
  files.files.push_back(std::move(plan.file));
  const ckpt::OutputTarget target = file_target(output, options.write);
  OutputReport report{files, *source, target, output, plan.tensors};
  report.details = {{"model", options.model},
                    {"modules", plan.modules},
                    {"operators", plan.operators},
                    {"inputs", plan.inputs}};
  carry_out(report, options.write, "importing", globals);
  return ExitCode::kSuccess;
}

}  // namespace

void add_import(CommandLine& line) {
  Command command =
      line.add("import", "Turn a model of torch.export (.pt2) into a TorchScript file for training");
  auto options = std::make_shared<ImportOptions>();
  command.positional("MODEL.pt2", options->model, "The file that torch.export.save wrote; it is not changed");
  command.positional("MODEL.pt", options->output, "File to write");
  add_write_options(command, options->write);
  command.does([options](const Globals& globals) { return run_import(*options, globals); });
}

}  // namespace accel::cli
