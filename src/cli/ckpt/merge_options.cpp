#include "cli/ckpt/merge_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/error.hpp"
#include "ckpt/store/adapter_names.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {

namespace fs = std::filesystem;

bool names_a_file(const MergeOptions& options, std::string_view extension) {
  const fs::path output = options.output;
  return output.extension() == extension && !fs::is_directory(output);
}

ckpt::OutputTarget target_of(const MergeOptions& options, const ckpt::OutputPlan& plan,
                             const ckpt::WeightFiles& names, std::vector<fs::path> assets) {
  const fs::path output = options.output;
  ckpt::OutputTarget target;
  target.path = output;
  target.is_file = names_a_file(options, names.extension);
  if (target.is_file && plan.files.size() > 1) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is one file, but {} are to be written", output.string(), plan.files.size()))
        .hint("name a directory");
  }
  if (target.is_file && !options.assets.empty()) {
    throw Error(ErrorKind::kUsage, "--copy-assets needs a directory to copy to").hint("name a directory");
  }
  if (options.write.force) target.existing = AtomicFile::Existing::kReplace;
  target.belongs = [names](std::string_view name) { return names.belongs(std::string(name)); };
  // transformers would take a model beside it for an adapter.
  if (names.stem != ckpt::kAdapterStem)
    std::erase_if(assets, [](const fs::path& asset) { return asset.filename() == ckpt::kAdapterConfigName; });
  target.assets = std::move(assets);
  return target;
}

std::vector<std::string> names_of(const std::vector<fs::path>& assets) {
  std::vector<std::string> names;
  for (const fs::path& asset : assets) names.push_back(asset.filename().string());
  return names;
}

void say_what_is_copied(const std::vector<fs::path>& assets, bool dry_run, const Globals& globals) {
  if (assets.empty() || globals.json) return;
  globals.out->line(fmt::format("{} {} from '{}'", dry_run ? "would copy" : "copied",
                                fmt::join(names_of(assets), ", "), assets.front().parent_path().string()));
}

}  // namespace accel::cli
