#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/files/leftover.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"
#include "ckpt/convert/merge.hpp"
#include "ckpt/convert/merge_check.hpp"
#include "ckpt/convert/names_on_disk.hpp"
#include "ckpt/convert/plan_text.hpp"
#include "ckpt/convert/remove_source.hpp"
#include "ckpt/convert/ties.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/layouts.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/store/model_assets.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/ckpt/merge_options.hpp"
#include "cli/ckpt/open_source.hpp"
#include "cli/ckpt/output_report.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "cli/runs/run_place.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;

// The checkpoint to merge, and the files that are copied with it.
struct MergeSource {
  std::string checkpoint;
  std::vector<fs::path> assets;
};

// Whether OUT gets the files that belong to the weights, though the user names no directory that has them.
bool takes_own_assets(const MergeOptions& options) {
  return options.assets.empty() && !options.no_assets && options.merge.selection.root.empty() &&
         !names_a_file(options, options.merge.unsafe_serialization ? ".bin" : ".safetensors");
}

// CKPT may be a checkpoint, or a run that has several.
MergeSource source_of(const MergeOptions& options) {
  if (!options.assets.empty() && options.no_assets)
    throw Error(ErrorKind::kUsage, "--copy-assets and --no-assets exclude each other");
  if (options.step && options.best)
    throw Error(ErrorKind::kUsage, "--step and --best exclude each other").hint("each chooses a checkpoint");
  MergeSource source{options.checkpoint, {}};
  if (!options.assets.empty()) source.assets = ckpt::find_assets(options.assets);
  if (!is_run(options.checkpoint)) {
    if (!options.step && !options.best) return source;
    throw Error(ErrorKind::kUsage,
                fmt::format("{} chooses a checkpoint of a run, and '{}' is not the output_dir "
                            "of a training with checkpoints",
                            options.best ? "--best" : "--step", options.checkpoint));
  }
  const RunPlace run = place_of_run(options.checkpoint);
  source.checkpoint = chosen_checkpoint(run, {options.step, options.best}).string();
  if (takes_own_assets(options)) source.assets = assets_of_run(run, source.checkpoint);
  return source;
}

bool lies_within(const fs::path& path, const fs::path& directory) {
  const fs::path relative = fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(directory));
  return !relative.empty() && *relative.begin() != "..";
}

void check_removal(const fs::path& source, const ckpt::OutputTarget& target) {
  if (!lies_within(target.path, source) && !lies_within(source, target.path)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' cannot be removed: it and the output '{}' lie one within the other",
                          source.string(), target.path.string()))
      .hint("write the output elsewhere, or leave out --remove-checkpoint-dir");
}

// The checkpoint may be removed only if the output has all of it, in all its bits.
void check_completeness(const ckpt::Selection& selection, const ckpt::MergePlan& plan) {
  const char* reason = !selection.include.empty() || !selection.exclude.empty()
                           ? "--include or --exclude selects"
                       : !selection.root.empty() ? "--root selects"
                                                 : nullptr;
  if (reason == nullptr && plan.left_out.empty() && !selection.dtype) return;
  throw Error(ErrorKind::kUsage,
              reason != nullptr
                  ? fmt::format("the checkpoint cannot be removed: {} only a part of it", reason)
              : selection.dtype
                  ? "the checkpoint cannot be removed: with --dtype the output does not have all its bits"
                  : fmt::format("the checkpoint cannot be removed: '{}' is not part of the output",
                                plan.left_out.front()))
      .hint("merge all of it, or leave out --remove-checkpoint-dir");
}

void say_what_is_tied(const ckpt::Checkpoint& source, const ckpt::MergePlan& plan, bool drop_equal) {
  if (drop_equal && !ckpt::may_hide_ties(source.kind())) {
    log::info(fmt::format("'{}' records which tensors are tied, so --drop-equal has no effect",
                          source.path().string()));
  }
  for (const ckpt::OutputItem& item : plan.state.tensors) {
    if (!item.tied_to) continue;
    const std::string other = ckpt::fqn_of(plan.state.tensors[*item.tied_to].path);
    log::info(drop_equal
                  ? fmt::format("'{}' is equal to '{}' and written once", ckpt::fqn_of(item.path), other)
                  : fmt::format("'{}' is tied to '{}' and written once; --keep-tied writes both",
                                ckpt::fqn_of(item.path), other));
  }
}

// The bits of a training are kept unless the user gives a dtype.
void say_what_is_rounded(const ckpt::MergePlan& plan, const std::vector<fs::path>& assets) {
  const std::string config = ckpt::dtype_of_config(assets);
  if (config != "bfloat16" && config != "float16") return;
  const auto is_wider = [](const ckpt::OutputItem& item) { return item.dtype == ckpt::DType::kFloat32; };
  if (std::none_of(plan.state.tensors.begin(), plan.state.tensors.end(), is_wider)) return;
  log::info(
      fmt::format("the weights are float32, and the config.json beside them says {}, to which "
                  "from_pretrained rounds them; "
                  "--dtype {} writes them so",
                  config, config == "float16" ? "fp16" : "bf16"));
}

// A tied tensor is written once, so it does not count.
OutputReport report_of(const ckpt::MergePlan& plan, ckpt::Checkpoint& source,
                       const ckpt::OutputTarget& target) {
  const std::string& last = plan.output.files.back().name;
  OutputReport report{plan.output, source, target, target.is_file ? target.path : target.path / last};
  report.names = ckpt::names_in_output(plan.state, source);
  nlohmann::ordered_json tied = nlohmann::ordered_json::object();
  for (const ckpt::OutputItem& item : plan.state.tensors) {
    if (item.tied_to) {
      tied[ckpt::fqn_of(item.path)] = ckpt::fqn_of(plan.state.tensors[*item.tied_to].path);
    } else {
      ++report.tensors;
    }
  }
  report.details = {{"kind", ckpt::name_of(source.kind())},
                    {"tied", tied},
                    {"left_out", plan.left_out},
                    {"assets", names_of(target.assets)}};
  return report;
}

// With `has_other_names` the names are not those that `accel inspect` lists.
ckpt::MergePlan plan_of(ckpt::Checkpoint& source, const ckpt::MergeOptions& options, bool has_other_names) {
  try {
    return ckpt::plan_merge(source, options);
  } catch (const Error& error) {
    const ckpt::Selection& selection = options.selection;
    const bool selects =
        !selection.include.empty() || !selection.exclude.empty() || !selection.rename.empty();
    if (!has_other_names || !selects) throw;
    throw Error(error.kind(), error.message())
        .hint(
            "the names are those of the directory of the weights; --module-names takes those that `accel "
            "inspect` lists");
  }
}

bool has_checksums(ckpt::Kind kind) {
  return kind != ckpt::Kind::kSafetensors && kind != ckpt::Kind::kSafetensorsSharded &&
         kind != ckpt::Kind::kDcpSafetensors;
}

ExitCode run_merge(MergeOptions options, const Globals& globals) {
  if (!options.adapter.empty()) return merge_adapter(options, globals);
  for (const std::string& rename : options.renames) {
    options.merge.selection.rename.push_back(ckpt::parse_rename(rename));
  }
  MergeSource given = source_of(options);
  if (options.remove_source) sweep_leftovers(given.checkpoint);  // A removal may not have finished.
  std::unique_ptr<ckpt::Checkpoint> source = open_source(given.checkpoint, "merging");
  const ckpt::Checkpoint* named_by_modules = source.get();
  if (!options.module_names && !ckpt::layout_of(*source).is_optimizer)
    source = ckpt::with_names_on_disk(std::move(source));
  const ckpt::MergePlan plan = plan_of(*source, options.merge, source.get() != named_by_modules);
  if (given.assets.empty() && takes_own_assets(options) && plan.names.stem == ckpt::kAdapterStem)
    given.assets = ckpt::adapter_assets(ckpt::directory_around(source->path()), {});
  const ckpt::OutputTarget target = target_of(options, plan.output, plan.names, std::move(given.assets));
  if (options.remove_source) {
    ckpt::check_removable(*source);
    check_removal(source->path(), target);
    check_completeness(options.merge.selection, plan);
  }
  say_what_is_left_out(*source, plan.parts_left_out);
  say_what_is_tied(*source, plan, options.merge.drop_equal);
  say_what_is_rounded(plan, target.assets);

  OutputReport report = report_of(plan, *source, target);
  const bool verify = options.verify || options.remove_source;
  report.is_verified = verify;
  if (options.write.dry_run) {
    print_plan(report, globals);
    say_what_is_copied(target.assets, /*dry_run=*/true, globals);
    return ExitCode::kSuccess;
  }
  ckpt::check_target(plan.output, target);
  ckpt::check_divergence(*source, plan);
  if (verify) {
    ckpt::check_source(*source, globals.progress(), options.remove_source);
  } else if (has_checksums(source->kind())) {
    log::info(
        fmt::format("the checksums of '{}' are not checked; --verify checks them", source->path().string()));
  }
  write_plan(report, options.write.limits, "merging", globals);
  if (verify) {
    Progress progress("verifying", plan.output.total_bytes(), globals.progress());
    ckpt::check_merged(*source, plan, target, progress);
  }
  if (options.remove_source) ckpt::remove_checkpoint(*source);
  report.details["removed"] = options.remove_source;
  print_result(report, globals);
  say_what_is_copied(target.assets, /*dry_run=*/false, globals);
  if (options.remove_source && !globals.json) globals.out->line("removed " + source->path().string());
  return ExitCode::kSuccess;
}

void add_options(Command& command, MergeOptions& options) {
  command.positional(
      "CKPT", options.checkpoint,
      "A checkpoint, a directory above one, or the output_dir of a training (its newest checkpoint)");
  command.positional("OUT", options.output,
                     "Directory that gets model.safetensors, or a file name that ends in .safetensors");
  command.text("--adapter", "DIR", options.adapter,
               "Add the LoRA adapter in DIR, a run or a directory of PEFT, to its base CKPT");
  command.size("--max-shard-size", options.merge.max_shard_bytes,
               "Size of the largest file, such as 5GB (decimal); several files get an index");
  add_dtype(command, options.merge.selection.dtype);
  command.texts("--rename", "FROM=TO", options.renames,
                "Change the start of names, or what follows a dot; may be repeated");
  command.texts("--include", "GLOB", options.merge.selection.include,
                "Take only tensors whose names match; may be repeated");
  command.texts("--exclude", "GLOB", options.merge.selection.exclude,
                "Leave out tensors whose names match; may be repeated");
  command.text("--root", "KEY", options.merge.selection.root,
               "Keys above the tensors, such as optimizer or app.model; by default those of the weights");
  command.flag("--keep-tied", options.merge.keep_tied, "Write tied tensors under each of their names");
  command.flag("--drop-equal", options.merge.drop_equal,
               "Write equal tensors once where the checkpoint does not record what is tied");
  command.flag("--unsafe-serialization", options.merge.unsafe_serialization,
               "Write pytorch_model.bin in torch.save's format");
  command.integer("--step", "N", options.step, "Take the checkpoint of step N of the training");
  command.flag(
      "--best", options.best,
      "Take the checkpoint of the training with the lowest held-out loss, or the best training.best_metric");
  command.text("--copy-assets", "DIR", options.assets,
               "Copy config and tokenizer files from DIR into OUT, by default those of the training");
  command.flag("--no-assets", options.no_assets, "Do not copy config and tokenizer files of the training");
  command.flag("--module-names", options.module_names,
               "Keep the names of the modules where the directory of the weights has other names");
  command.flag("--verify", options.verify,
               "Verify the checkpoint first, then read the output again and compare it");
  command.flag("--remove-checkpoint-dir", options.remove_source,
               "Remove the checkpoint after it and the durable output are verified");
  add_write_options(command, options.write);
}

}  // namespace

void add_merge_weights(CommandLine& line) {
  Command command = line.add("merge-weights", "Merge a sharded, local or full checkpoint into safetensors");
  auto options = std::make_shared<MergeOptions>();
  add_options(command, *options);
  command.does([options](const Globals& globals) { return run_merge(*options, globals); });
}

}  // namespace accel::cli
