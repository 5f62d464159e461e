#include "ckpt/convert/merge_check.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/log.hpp"
#include "ckpt/tensor/compare.hpp"
#include "ckpt/verify/verify.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShownFindings = 5;

// Drops the pages of the file from the page cache, so that the file is read from the disk. It has been
// synced.
void drop_pages(const fs::path& path) {
  const File file = File::open_read(path);
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
}

// The tensors of all files of the output, by name.
class Merged {
 public:
  void open(const fs::path& path) {
    drop_pages(path);
    files_.push_back(open_checkpoint(path));
    const std::vector<TensorEntry>& tensors = files_.back()->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) places_[tensors[i].name] = {files_.back().get(), i};
  }

  std::pair<Checkpoint*, std::size_t> find(const std::string& name) const {
    const auto found = places_.find(name);
    if (found == places_.end()) {
      throw Error(ErrorKind::kMissing, fmt::format("tensor '{}' is missing from the output", name));
    }
    return found->second;
  }

 private:
  std::vector<std::unique_ptr<Checkpoint>> files_;
  std::map<std::string, std::pair<Checkpoint*, std::size_t>> places_;
};

// The files that hold data of the checkpoint.
std::set<fs::path> files_of(Checkpoint& source) {
  std::set<fs::path> files;
  if (!fs::is_directory(source.path())) files.insert(source.path());
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    for (const Extent& extent : source.locate(i).extents) files.insert(source.directory() / extent.file);
  }
  return files;
}

}  // namespace

void check_source(Checkpoint& source, Progress::Mode progress, bool is_removed) {
  VerifyOptions options;
  options.depth = 0;
  options.progress = progress;
  std::vector<Finding> findings;
  std::optional<std::set<fs::path>> files;
  for (Verified& verified : verify(source.path(), options).checkpoints) {
    if (verified.findings.empty()) continue;
    if (!files) files = files_of(source);
    const bool is_read = fs::is_directory(verified.path) || files->contains(verified.path);
    for (Finding& finding : verified.findings) {
      const bool is_doubt = finding.kind == FindingKind::kStale || finding.kind == FindingKind::kTimes;
      if (is_removed || (is_read && !is_doubt)) {
        findings.push_back(std::move(finding));
      } else {
        log::warn(fmt::format("'{}': {}", verified.path.string(), to_string(finding)));
      }
    }
  }
  sort_findings(findings);
  if (findings.empty()) return;
  std::vector<std::string> texts;
  const std::size_t shown = std::min(findings.size(), kShownFindings);
  for (std::size_t i = 0; i < shown; ++i) texts.push_back(to_string(findings[i]));
  throw Error(
      error_kind_of(findings),
      fmt::format("'{}' is damaged: {}{}", source.path().string(), fmt::join(texts, "; "),
                  shown < findings.size() ? fmt::format("; and {} more", findings.size() - shown) : ""))
      .hint("nothing was written or removed; 'accel verify' lists all that is wrong");
}

void check_merged(Checkpoint& source, const MergePlan& plan, const OutputTarget& target, Progress& progress) {
  Merged merged;
  for (const OutputFile& file : plan.output.files) {
    if (!file.name.ends_with(plan.names.extension)) continue;
    merged.open(target.is_file ? target.path : target.path / file.name);
  }
  const fs::path directory = target.is_file ? parent_of(target.path) : target.path;
  TensorComparer comparer(source.directory(), directory, [&](std::uint64_t bytes) { progress.add(bytes); });
  for (const OutputItem& item : plan.state.tensors) {
    if (item.tied_to) continue;
    const std::string name = fqn_of(item.path);
    const auto [file, index] = merged.find(name);
    const StoredTensor written = file->locate(index);
    if (written.dtype != item.dtype || written.shape != item.shape) {
      throw Error(ErrorKind::kCorrupt, fmt::format("tensor '{}' was written as {} {}, not as {} {}", name,
                                                   torch_name(written.dtype), to_string(written.shape),
                                                   torch_name(item.dtype), to_string(item.shape)));
    }
    const Difference difference = comparer.compare_converted(source.locate(item.source), written);
    if (difference.elements == 0) continue;
    throw Error(ErrorKind::kCorrupt, fmt::format("tensor '{}': {} elements differ from the checkpoint's",
                                                 name, difference.elements))
        .hint("the disk or the memory may be failing; the checkpoint is left as it is");
  }
}

}  // namespace accel::ckpt
