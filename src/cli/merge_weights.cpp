#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"
#include "ckpt/checkpoint_search.hpp"
#include "ckpt/dcp_read.hpp"
#include "ckpt/merge_execute.hpp"
#include "ckpt/merge_plan.hpp"
#include "ckpt/model_tensors.hpp"
#include "cli/commands.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  std::string checkpoint;
  std::string output;
  bool force = false;
  bool keep_tied = false;
  bool dry_run = false;
  ckpt::MergeLimits limits;
};

// Flags of later versions: known, so that the message is better than "unknown flag".
constexpr const char* kLaterFlags[] = {"--unsafe-serialization", "--remove-checkpoint-dir", "--verify"};
constexpr const char* kLaterOptions[] = {"--max-shard-size", "--dtype",   "--rename",     "--include",
                                         "--exclude",        "--threads", "--copy-assets"};

void refuse_later_flags(const CLI::App& command) {
  const auto refuse = [&](const char* name) {
    if (command.count(name) == 0) return;
    throw Error(ErrorKind::kUsage, fmt::format("merge-weights {} is not there yet", name));
  };
  for (const char* name : kLaterFlags) refuse(name);
  for (const char* name : kLaterOptions) refuse(name);
}

// OUT is the file if it is called so, else the directory that gets it.
fs::path target_of(const fs::path& output) {
  return output.extension() == ".safetensors" && !fs::is_directory(output) ? output
                                                                           : output / "model.safetensors";
}

fs::path find_source(const Options& options) {
  fs::path source = ckpt::find_model_directory(options.checkpoint);
  if (source != fs::path(options.checkpoint)) log::info(fmt::format("merging '{}'", source.string()));
  return source;
}

ckpt::MergePlan make_plan(ckpt::DcpReader& reader, bool keep_tied) {
  ckpt::ModelTensors model = ckpt::model_tensors_of(reader);
  for (const std::string& name : model.objects) {
    log::warn(fmt::format("'{}' is not a tensor and is left out", name));
  }
  if (model.tensors.empty()) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no tensors", reader.directory().string()));
  }
  std::vector<ckpt::Tie> ties;
  if (!keep_tied) ties = ckpt::find_ties(model.tensors, reader.directory());
  for (const ckpt::Tie& tie : ties) {
    log::info(
        fmt::format("'{}' is tied to '{}' and kept once; --keep-tied writes both", tie.dropped, tie.kept));
  }
  return ckpt::plan_merge(std::move(model.tensors), std::move(ties));
}

Json to_json(const ckpt::MergePlan& plan, const fs::path& source, const fs::path& target) {
  Json document;
  document["path"] = target.string();
  document["source"] = source.string();
  document["tensors"] = plan.tensors.size();
  document["bytes"] = plan.total_bytes;
  document["tied"] = Json::object();
  for (const ckpt::Tie& tie : plan.ties) document["tied"][tie.dropped] = tie.kept;
  return document;
}

void print(const Json& document, std::ostream& out) {
  out << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

void print_plan(const ckpt::MergePlan& plan, const fs::path& source, const fs::path& target,
                const Globals& globals) {
  if (!globals.json) {
    *globals.out << ckpt::describe(plan) << fmt::format("would be written to {}\n", target.string());
    return;
  }
  Json document = to_json(plan, source, target);
  document["plan"] = Json::array();
  for (const ckpt::MergeTensor& tensor : plan.tensors) {
    Json pieces = Json::array();
    for (const ckpt::Extent& extent : tensor.source.extents) {
      pieces.push_back({{"file", extent.file},
                        {"offset", extent.offset},
                        {"tensor_offsets", extent.box.offsets},
                        {"sizes", extent.box.sizes}});
    }
    document["plan"].push_back({{"name", tensor.source.name},
                                {"dtype", ckpt::torch_name(tensor.source.dtype)},
                                {"shape", tensor.source.shape},
                                {"target", tensor.target},
                                {"bytes", tensor.bytes},
                                {"pieces", std::move(pieces)}});
  }
  print(document, *globals.out);
}

void print_result(const ckpt::MergePlan& plan, const fs::path& source, const fs::path& target, double seconds,
                  const Globals& globals) {
  const double rate = seconds > 0 ? static_cast<double>(plan.total_bytes) / seconds : 0;
  if (globals.json) {
    Json document = to_json(plan, source, target);
    document["seconds"] = seconds;
    document["bytes_per_second"] = rate;
    print(document, *globals.out);
    return;
  }
  *globals.out << fmt::format("{}: {} tensors, {} ({} bytes) in {} ({}/s)\n", target.string(),
                              plan.tensors.size(), format_bytes(plan.total_bytes), plan.total_bytes,
                              format_duration(seconds), format_bytes(static_cast<std::uint64_t>(rate)));
}

ExitCode run_merge(const Options& options, const Globals& globals) {
  const fs::path source = find_source(options);
  const fs::path target = target_of(options.output);
  if (fs::exists(target) && !options.force && !options.dry_run) {
    throw Error(ErrorKind::kFailure, fmt::format("'{}' is already there", target.string()))
        .hint("choose another output, or pass --force to replace it");
  }
  ckpt::DcpReader reader(source);
  const ckpt::MergePlan plan = make_plan(reader, options.keep_tied);
  if (options.dry_run) {
    print_plan(plan, source, target, globals);
    return ExitCode::kSuccess;
  }
  make_directories(parent_of(target));
  double seconds = 0;
  {
    Progress progress("merging", plan.tensor_bytes(),
                      globals.quiet ? Progress::Mode::kOff : Progress::Mode::kAuto);
    const auto existing = options.force ? AtomicFile::Existing::kReplace : AtomicFile::Existing::kRefuse;
    ckpt::execute_merge(plan, source, target, existing, options.limits, progress);
    seconds = progress.seconds();
  }
  print_result(plan, source, target, seconds, globals);
  return ExitCode::kSuccess;
}

}  // namespace

void add_merge_weights(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command =
      app.add_subcommand("merge-weights", "Merge a sharded checkpoint into one safetensors file");
  auto options = std::make_shared<Options>();
  command
      ->add_option("CKPT", options->checkpoint,
                   "The checkpoint's directory, or one above it that holds just one")
      ->required();
  command
      ->add_option("OUT", options->output,
                   "Directory that gets model.safetensors, or a file name ending in .safetensors")
      ->required();
  command->add_flag("--force", options->force, "Replace the output if it is there");
  command->add_flag("--keep-tied", options->keep_tied, "Write tied tensors under each of their names");
  command->add_flag("--dry-run", options->dry_run, "Print what would go where, and write nothing");
  command->add_option("--max-memory", options->limits.memory_bytes, "Memory to use, at least 16MB (64MB)")
      ->transform(CLI::AsSizeValue(true))
      ->type_name("SIZE");
  for (const char* name : kLaterFlags) command->add_flag(name)->group("");
  for (const char* name : kLaterOptions) {
    command->add_option_function<std::vector<std::string>>(name, [](const auto&) {})->group("");
  }
  command->callback([command, options, &globals, &action] {
    refuse_later_flags(*command);
    action = [options, &globals] { return run_merge(*options, globals); };
  });
}

}  // namespace accel::cli
