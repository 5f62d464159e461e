#include "ckpt/merge_check.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/file.hpp"
#include "ckpt/compare.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

// Lets go of what the kernel remembers of the file, which has been synced: reading it asks the disk.
void forget_pages(const fs::path& path) {
  const File file = File::open_read(path);
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
}

// The tensors of all files of the output, by name.
class Merged {
 public:
  void open(const fs::path& path) {
    forget_pages(path);
    files_.push_back(open_checkpoint(path));
    const std::vector<TensorEntry>& tensors = files_.back()->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) places_[tensors[i].name] = {files_.back().get(), i};
  }

  std::pair<Checkpoint*, std::size_t> find(const std::string& name) const {
    const auto found = places_.find(name);
    if (found == places_.end()) {
      throw Error(ErrorKind::kMissing, fmt::format("tensor '{}' is not in what was written", name));
    }
    return found->second;
  }

 private:
  std::vector<std::unique_ptr<Checkpoint>> files_;
  std::map<std::string, std::pair<Checkpoint*, std::size_t>> places_;
};

}  // namespace

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
