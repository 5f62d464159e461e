#include "train/checkpoint/other_forms.hpp"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/progress.hpp"
#include "ckpt/convert/merge.hpp"
#include "ckpt/convert/names_on_disk.hpp"
#include "ckpt/convert/save.hpp"
#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/layout_parts.hpp"
#include "ckpt/read/layouts.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "ckpt/store/saved_parts.hpp"
#include "ckpt/write/commit.hpp"
#include "train/checkpoint/save_checks.hpp"

namespace accel::train {
namespace {

namespace fs = std::filesystem;

/// transformers splits larger models into files of this size.
constexpr std::uint64_t kMostShardBytes = 5'000'000'000;

/// One thread, because training goes on meanwhile.
constexpr ckpt::WriteLimits kLimits{.threads = 1};

void write(ckpt::Checkpoint& source, const ckpt::OutputPlan& plan, const ckpt::OutputTarget& target) {
  Progress progress("saving", plan.total_bytes(), Progress::Mode::kOff);
  ckpt::write_output(source, plan, target, kLimits, progress);
}

/// A part of a training's checkpoint is written in another form as a whole, or not at all.
void require_nothing_left_out(const ckpt::Checkpoint& source) {
  const std::vector<ckpt::LayoutPart> parts =
      ckpt::left_out_parts(source, ckpt::layout_of(source), ckpt::Objects::kTaken);
  if (parts.empty()) return;
  throw Error(
      ErrorKind::kFailure,
      fmt::format("'{}' would lose {}, whose names are like those of an optimizer or of a run's state",
                  source.path().string(), ckpt::to_string(parts)))
      .hint("rename the module, or train with fsdp_state_dict_type: SHARDED_STATE_DICT and without export");
}

}  // namespace

std::vector<ckpt::FileSummary> convert_part(const fs::path& directory, const std::string& part,
                                            config::StateDictType type, int ranks,
                                            const std::map<std::string, std::string>& tied) {
  const bool is_model = part.starts_with(ckpt::kModelStem);
  const bool converts = type == config::StateDictType::kFull
                            ? is_model || part.starts_with(ckpt::kOptimizerStem)
                            : type == config::StateDictType::kLocal && is_model;
  if (!converts) return {};
  const bool full = type == config::StateDictType::kFull;
  std::vector<ckpt::FileSummary> files;
  {
    const std::unique_ptr<ckpt::Checkpoint> source = ckpt::open_checkpoint(directory / part);
    require_nothing_left_out(*source);
    const ckpt::SavePlan plan =
        ckpt::plan_save(*source, {.type = full ? ckpt::SaveType::kFull : ckpt::SaveType::kLocal,
                                  .ranks = full ? 1 : ranks,
                                  .index = ckpt::index_of_directory(part),
                                  .tied = is_model ? tied : std::map<std::string, std::string>()});
    write(*source, plan.output, {.path = directory, .belongs = plan.belongs});
    for (const ckpt::OutputFile& file : plan.output.files) files.push_back(summary_of(directory, file.name));
  }
  remove_tree(directory / part);
  return files;
}

void export_safetensors(const fs::path& checkpoint, const fs::path& output, std::vector<fs::path> assets,
                        bool is_adapter) {
  std::unique_ptr<ckpt::Checkpoint> source =
      ckpt::open_checkpoint(ckpt::saved_part(checkpoint, ckpt::kModelStem).value());
  require_nothing_left_out(*source);
  source = ckpt::with_names_on_disk(std::move(source));
  const ckpt::MergePlan plan = ckpt::plan_merge(
      *source, {.max_shard_bytes = is_adapter ? 0 : kMostShardBytes, .is_adapter = is_adapter});
  ckpt::OutputTarget target{.path = output, .existing = AtomicFile::Existing::kReplace};
  // An earlier export may have been of the other kind.
  target.belongs = [](std::string_view name) {
    const auto is_of = [&](std::string_view stem) {
      return ckpt::WeightFiles{std::string(stem), ".safetensors"}.belongs(std::string(name));
    };
    return is_of("model") || is_of(ckpt::kAdapterStem);
  };
  target.assets = std::move(assets);
  write(*source, plan.output, target);
}

}  // namespace accel::train
