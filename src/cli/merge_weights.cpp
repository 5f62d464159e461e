#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/leftover.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"
#include "ckpt/checkpoint.hpp"
#include "ckpt/checkpoint_search.hpp"
#include "ckpt/merge_check.hpp"
#include "ckpt/merge_plan.hpp"
#include "ckpt/model_assets.hpp"
#include "ckpt/output_commit.hpp"
#include "ckpt/remove_checkpoint.hpp"
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/merge_report.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string checkpoint;
  std::string output;
  ckpt::MergeOptions merge;
  std::vector<std::string> renames;
  std::string assets;
  bool force = false;
  bool dry_run = false;
  bool verify = false;
  bool remove_source = false;
  ckpt::WriteLimits limits;
};

// OUT is the file if it is called so, else the directory that gets it.
ckpt::OutputTarget target_of(const Options& options, const ckpt::MergePlan& plan) {
  const fs::path output = options.output;
  ckpt::OutputTarget target;
  target.path = output;
  target.is_file = output.extension() == plan.names.extension && !fs::is_directory(output);
  if (target.is_file && plan.output.files.size() > 1) {
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is one file, but {} are to be written", output.string(),
                                               plan.output.files.size()))
        .hint("name a directory");
  }
  if (target.is_file && !options.assets.empty()) {
    throw Error(ErrorKind::kUsage, "--copy-assets needs a directory to copy to").hint("name a directory");
  }
  if (options.force) target.existing = AtomicFile::Existing::kReplace;
  target.belongs = [names = plan.names](std::string_view name) { return names.belongs(std::string(name)); };
  if (!options.assets.empty()) target.assets = ckpt::find_assets(options.assets);
  return target;
}

bool lies_within(const fs::path& path, const fs::path& directory) {
  const fs::path relative = fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(directory));
  return !relative.empty() && *relative.begin() != "..";
}

void check_removal(const fs::path& source, const ckpt::OutputTarget& target) {
  if (!lies_within(target.path, source) && !lies_within(source, target.path)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' cannot be removed: the output '{}' and it lie one within the other",
                          source.string(), target.path.string()))
      .hint("write the output elsewhere, or leave out --remove-checkpoint-dir");
}

void say_what_is_left_out(const ckpt::MergePlan& plan) {
  for (const std::string& name : plan.left_out) {
    log::warn(fmt::format("'{}' is not part of the model's weights and is left out", name));
  }
  for (const ckpt::OutputItem& item : plan.state.tensors) {
    if (!item.tied_to) continue;
    log::info(fmt::format("'{}' is tied to '{}' and kept once; --keep-tied writes both",
                          ckpt::fqn_of(item.path), ckpt::fqn_of(plan.state.tensors[*item.tied_to].path)));
  }
}

ExitCode run_merge(Options options, const Globals& globals) {
  for (const std::string& rename : options.renames) {
    options.merge.selection.rename.push_back(ckpt::parse_rename(rename));
  }
  if (options.remove_source) sweep_leftovers(options.checkpoint);  // Of a removal that did not finish.
  const fs::path path = ckpt::find_checkpoint(options.checkpoint, ckpt::Want::kModel);
  if (path != fs::path(options.checkpoint)) log::info(fmt::format("merging '{}'", path.string()));
  const std::unique_ptr<ckpt::Checkpoint> source = ckpt::open_checkpoint(path);
  const ckpt::MergePlan plan = ckpt::plan_merge(*source, options.merge);
  const ckpt::OutputTarget target = target_of(options, plan);
  if (options.remove_source) {
    ckpt::check_removable(*source);
    check_removal(path, target);
  }
  say_what_is_left_out(plan);

  MergeReport report{plan, *source, target};
  if (options.dry_run) {
    print_plan(report, globals);
    return ExitCode::kSuccess;
  }
  ckpt::check_target(plan.output, target);
  ckpt::check_divergence(*source, plan);
  const auto mode = globals.quiet ? Progress::Mode::kOff : Progress::Mode::kAuto;
  {
    Progress progress("merging", plan.output.total_bytes(), mode);
    ckpt::write_output(*source, plan.output, target, options.limits, progress);
    report.seconds = progress.seconds();
  }
  if (options.verify || options.remove_source) {
    Progress progress("verifying", plan.output.total_bytes(), mode);
    ckpt::check_merged(*source, plan, target, progress);
    report.verified = true;
  }
  if (options.remove_source) {
    ckpt::remove_checkpoint(*source);
    report.removed = true;
  }
  print_result(report, globals);
  return ExitCode::kSuccess;
}

CLI::Validator size_value() {
  return CLI::Validator(
      [](std::string& text) {
        const std::optional<std::uint64_t> size = parse_size(text);
        if (!size) return fmt::format("'{}' is no size such as 5GB", text);
        text = std::to_string(*size);
        return std::string();
      },
      "");
}

void add_options(CLI::App& command, Options& options) {
  command
      .add_option("CKPT", options.checkpoint,
                  "The checkpoint: sharded, local or full; or a directory above it that holds just one")
      ->required();
  command
      .add_option("OUT", options.output,
                  "Directory that gets model.safetensors, or a file name ending in .safetensors")
      ->required();
  command
      .add_option("--max-shard-size", options.merge.max_shard_bytes,
                  "Largest file, such as 5GB (decimal); above it several files and an index are written")
      ->transform(size_value())
      ->type_name("SIZE");
  const std::map<std::string, ckpt::DType> dtypes = {
      {"f32", ckpt::DType::kFloat32},   {"float32", ckpt::DType::kFloat32},
      {"bf16", ckpt::DType::kBFloat16}, {"bfloat16", ckpt::DType::kBFloat16},
      {"f16", ckpt::DType::kFloat16},   {"float16", ckpt::DType::kFloat16}};
  command
      .add_option_function<std::string>(
          "--dtype",
          [&options, dtypes](const std::string& name) { options.merge.selection.dtype = dtypes.at(name); },
          "Convert floating-point tensors: f32, bf16 or f16")
      ->check(CLI::IsMember(dtypes).description(""))
      ->type_name("TYPE");
  command.add_option("--rename", options.renames, "Change the start of names, or of a part behind a dot")
      ->type_name("FROM=TO");
  command.add_option("--include", options.merge.selection.include, "Take only tensors whose names match")
      ->type_name("GLOB");
  command.add_option("--exclude", options.merge.selection.exclude, "Leave out tensors whose names match")
      ->type_name("GLOB");
  command
      .add_option("--root", options.merge.selection.root,
                  "Key of the nested state dict to take, if not the model's")
      ->type_name("KEY");
  command.add_flag("--keep-tied", options.merge.keep_tied, "Write tied tensors under each of their names");
  command.add_flag("--unsafe-serialization", options.merge.unsafe_serialization,
                   "Write pytorch_model.bin, torch.save's format");
  command.add_option("--copy-assets", options.assets, "Copy config and tokenizer files from there into OUT")
      ->type_name("DIR");
  command.add_flag("--verify", options.verify, "Read the output again and compare it with the checkpoint");
  command.add_flag("--remove-checkpoint-dir", options.remove_source,
                   "Remove the checkpoint once the output is durable and verified");
  command.add_flag("--force", options.force, "Replace the output if it is there");
  command.add_flag("--dry-run", options.dry_run, "Print what would go where, and write nothing");
  command
      .add_option("--max-memory", options.limits.memory_bytes, "Memory to use (64MB); at least 16MB a thread")
      ->transform(size_value())
      ->type_name("SIZE");
  command.add_option("--threads", options.limits.threads, "Threads that read and write (2)")
      ->check(CLI::Range(1, 64).description(""))
      ->type_name("N");
}

}  // namespace

void add_merge_weights(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command =
      app.add_subcommand("merge-weights", "Merge a sharded, local or full checkpoint into safetensors");
  auto options = std::make_shared<Options>();
  add_options(*command, *options);
  command->callback([options, &globals, &action] {
    action = [options, &globals] { return run_merge(*options, globals); };
  });
}

}  // namespace accel::cli
