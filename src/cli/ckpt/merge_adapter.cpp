#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/convert/merge.hpp"
#include "ckpt/convert/merge_adapter.hpp"
#include "ckpt/convert/plan_text.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/store/adapter_config.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/store/model_assets.hpp"
#include "ckpt/write/commit.hpp"
#include "cli/ckpt/merge_options.hpp"
#include "cli/ckpt/open_source.hpp"
#include "cli/ckpt/output_report.hpp"
#include "cli/runs/run_place.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;

// The output is the base with other values, so nothing is selected, renamed or removed, and it cannot be
// compared with a source.
void check_options(const MergeOptions& options) {
  const ckpt::Selection& selection = options.merge.selection;
  const std::array<std::pair<const char*, bool>, 10> others = {
      {{"--dtype", selection.dtype.has_value()},
       {"--rename", !options.renames.empty()},
       {"--include", !selection.include.empty()},
       {"--exclude", !selection.exclude.empty()},
       {"--root", !selection.root.empty()},
       {"--keep-tied", options.merge.keep_tied},
       {"--drop-equal", options.merge.drop_equal},
       {"--unsafe-serialization", options.merge.unsafe_serialization},
       {"--verify", options.verify},
       {"--remove-checkpoint-dir", options.remove_source}}};
  for (const auto& [name, is_given] : others) {
    if (!is_given) continue;
    throw Error(ErrorKind::kUsage, fmt::format("--adapter and {} exclude each other", name))
        .hint("merge the adapter first, and use the option on the result");
  }
  if (!options.assets.empty() && options.no_assets)
    throw Error(ErrorKind::kUsage, "--copy-assets and --no-assets exclude each other");
}

struct AdapterSource {
  std::unique_ptr<ckpt::Checkpoint> checkpoint;
  fs::path config;  ///< The path of its adapter_config.json.
};

AdapterSource open_adapter(const MergeOptions& options) {
  AdapterSource source;
  std::vector<fs::path> configs;
  if (is_run(options.adapter)) {
    const RunPlace run = place_of_run(options.adapter);
    const fs::path chosen = chosen_checkpoint(run, {options.step, options.best});
    source.checkpoint = open_source(chosen.string(), "merging");
    configs = assets_of_run(run, chosen);
  } else {
    if (options.step || options.best) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("--step and --best choose a checkpoint of a run, and '{}' is not the "
                              "output_dir of a training with checkpoints",
                              options.adapter));
    }
    source.checkpoint = open_source(options.adapter, "merging");
    configs = ckpt::adapter_assets(ckpt::directory_around(source.checkpoint->path()), {});
  }
  if (configs.size() != 1 || configs.front().filename() != ckpt::kAdapterConfigName) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' has no {}, which says how the adapter is scaled",
                                                 options.adapter, ckpt::kAdapterConfigName))
        .hint(
            "name a directory that PEFT has saved, or the output_dir of a training that saves an adapter "
            "(training.checkpoint.adapter_only)");
  }
  source.config = configs.front();
  return source;
}

std::vector<fs::path> assets_of(const MergeOptions& options, const ckpt::Checkpoint& base) {
  if (!options.assets.empty()) return ckpt::find_assets(options.assets);
  if (options.no_assets || names_a_file(options, ".safetensors")) return {};
  return ckpt::assets_beside(base.path());
}

[[noreturn]] void refuse_output(const MergeOptions& options, const char* what, const ckpt::Checkpoint& part) {
  throw Error(ErrorKind::kUsage, fmt::format("the output '{}' is {} '{}', of which it is made",
                                             options.output, what, part.path().string()))
      .hint("write the output elsewhere");
}

// The writer protects the path of the base only, as the joined checkpoint has no other: its shards and the
// files of the adapter are protected here.
void check_output(const MergeOptions& options, ckpt::Checkpoint& part) {
  if (!fs::exists(options.output)) return;
  if (fs::equivalent(options.output, part.directory())) refuse_output(options, "the directory of", part);
  if (fs::is_directory(options.output)) return;
  const fs::path output = fs::canonical(options.output);
  const auto is_output = [&](const std::string& name) {
    return fs::weakly_canonical(part.directory() / name) == output;
  };
  for (std::size_t i = 0; i < part.tensors().size(); ++i) {
    const ckpt::TensorFiles files = part.files_of(i);
    if (std::any_of(files.pieces.begin(), files.pieces.end(), is_output) ||
        std::any_of(files.copies.begin(), files.copies.end(), is_output))
      refuse_output(options, "a file of", part);
  }
}

}  // namespace

ExitCode merge_adapter(const MergeOptions& options, const Globals& globals) {
  check_options(options);
  const std::unique_ptr<ckpt::Checkpoint> base = open_source(options.checkpoint, "merging into");
  const AdapterSource adapter = open_adapter(options);
  check_output(options, *base);
  check_output(options, *adapter.checkpoint);
  const ckpt::MergePlan named = ckpt::plan_merge(*adapter.checkpoint, {.is_adapter = true});
  const ckpt::AdapterMergePlan plan =
      ckpt::plan_adapter_merge(*base, *adapter.checkpoint, named, ckpt::read_adapter_config(adapter.config),
                               options.merge.max_shard_bytes);
  const ckpt::OutputTarget target = target_of(options, plan.output, plan.names, assets_of(options, *base));

  const std::string& last = plan.output.files.back().name;
  OutputReport report{plan.output, *plan.source, target, target.is_file ? target.path : target.path / last,
                      plan.state.tensors.size()};
  report.names = ckpt::names_in_output(plan.state, *plan.source);
  report.details = {{"adapter", adapter.checkpoint->path().string()},
                    {"updated", plan.updated},
                    {"replaced", plan.replaced},
                    {"assets", names_of(target.assets)}};
  if (!options.write.dry_run) {
    ckpt::check_target(plan.output, target);
    ckpt::check_divergence(*adapter.checkpoint, named);
  }
  log::info(fmt::format("'{}' changes {} of {} tensors and replaces {}", adapter.checkpoint->path().string(),
                        plan.updated, plan.state.tensors.size(), plan.replaced));
  carry_out(report, options.write, "merging", globals);
  say_what_is_copied(target.assets, options.write.dry_run, globals);
  return ExitCode::kSuccess;
}

}  // namespace accel::cli
