#include "ckpt/read/rank_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "ckpt/torch/dtensor.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/torch/sharded_tensor.hpp"
#include "ckpt/torch/state_walk.hpp"

namespace accel::ckpt {
namespace {

// Makes pieces whose box came before copies. The order stays as it is.
void part_copies(ListedTensor& tensor) {
  std::set<std::pair<Dims, Dims>> seen;
  std::vector<Extent> pieces;
  for (Extent& extent : tensor.extents) {
    const bool fresh = seen.emplace(extent.box.offsets, extent.box.sizes).second;
    (fresh ? pieces : tensor.copies).push_back(std::move(extent));
  }
  tensor.extents = std::move(pieces);
}

bool holds_dtensor(const std::filesystem::path& path) {
  bool found = false;
  StateVisitor visitor;
  visitor.tensor = [&](const StatePath&, const TorchTensor&, const pickle::Value& value) {
    try {
      found = found || dtensor_of(value).has_value() || sharded_tensor_of(value).has_value();
    } catch (const Error&) {
      found = true;  // It is one, of a form that is not read.
    }
  };
  visitor.object = [](const StatePath&, const pickle::Value&) {};
  try {
    const File file = File::open_read(path);
    walk_state(TorchFile(FileWindow(file, 0, file.size())).read_pickle(), visitor);
  } catch (const Error&) {
    return found;
  }
  return found;
}

/// Only two files are read, because there may be thousands.
bool is_set(const RankFiles& set) {
  return set.name.is_accelerates() || holds_dtensor(set.directory / set.files.begin()->second) ||
         holds_dtensor(set.directory / set.files.rbegin()->second);
}

/// The names of the files of `directory` that differ from `name` in the rank alone, with their ranks.
std::vector<std::pair<int, std::string>> same_names(const std::filesystem::path& directory,
                                                    const RankFileName& name) {
  std::vector<std::pair<int, std::string>> names;
  for (std::string& other : files_in(directory, name.before, name.after)) {
    const std::optional<RankFileName> parsed = parse_rank_file_name(other);
    if (parsed && parsed->before == name.before && parsed->after == name.after)
      names.emplace_back(parsed->rank, std::move(other));
  }
  return names;
}

}  // namespace

Kind kind_of_set(const RankFiles& set) {
  if (!set.name.is_accelerates()) return Kind::kDtensor;
  std::filesystem::path description = set.directory / set.files.begin()->second;
  return std::filesystem::exists(description.replace_extension(".json")) ? Kind::kLocal : Kind::kDtensor;
}

bool is_of_rank_set(const std::filesystem::path& file) {
  const std::optional<RankFileName> name = parse_rank_file_name(file.filename().string());
  if (!name) return false;
  RankFiles set{parent_of(file), *name, {{name->rank, file.filename().string()}}};
  for (auto& [rank, other] : same_names(set.directory, *name)) set.files.emplace(rank, std::move(other));
  return is_set(set) || holds_dtensor(file);
}

RankFiles rank_files_of(const std::filesystem::path& file) {
  const std::optional<RankFileName> name = parse_rank_file_name(file.filename().string());
  if (!name)
    throw Error(ErrorKind::kFailure, fmt::format("'{}' is not named like the file of a rank", file.string()));
  RankFiles set{parent_of(file), *name, {}};
  for (const auto& [rank, other] : same_names(set.directory, *name)) {
    const auto [known, fresh] = set.files.emplace(rank, other);
    if (!fresh) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("'{}' has both {} and {}", set.directory.string(), known->second, other));
    }
  }
  return set;
}

std::vector<RankFiles> take_rank_sets(const std::filesystem::path& directory,
                                      std::vector<std::string>& names) {
  // The key of a set is what stands before and behind the rank.
  std::map<std::pair<std::string, std::string>, RankFiles> sets;
  for (const std::string& name : names) {
    std::optional<RankFileName> parsed = parse_rank_file_name(name);
    std::error_code unreadable;
    if (!parsed || !std::filesystem::is_regular_file(directory / name, unreadable)) continue;
    const std::pair key(parsed->before, parsed->after);
    RankFiles& set = sets.try_emplace(key, RankFiles{directory, *parsed, {}}).first->second;
    set.files.emplace(parsed->rank, name);
  }
  std::vector<RankFiles> found;
  std::set<std::string> taken;
  for (auto& [key, set] : sets) {
    if (!is_set(set)) continue;
    for (const auto& [rank, name] : set.files) taken.insert(name);
    found.push_back(std::move(set));
  }
  std::erase_if(names, [&](const std::string& name) { return taken.contains(name); });
  return found;
}

void require_rank(const RankFiles& set, std::int64_t rank, std::int64_t count) {
  const bool possible = std::in_range<int>(rank);
  if (possible && set.files.contains(static_cast<int>(rank))) return;
  throw Error(ErrorKind::kMissing, fmt::format("'{}' has no {}: the file of rank {} of {} is missing",
                                               set.directory.string(), set.name.of(rank), rank, count))
      .hint("put the files of all ranks into one directory");
}

ListedTensor& RankGatherer::tensor(const StatePath& path, DType dtype, const Dims& shape) {
  const auto [found, fresh] = by_name_.emplace(fqn_of(path), tensors_.size());
  if (fresh) tensors_.push_back({path, dtype, shape, {}});
  ListedTensor& tensor = tensors_[found->second];
  if (tensor.path != path || tensor.dtype != dtype || tensor.shape != shape) {
    throw Error(ErrorKind::kCorrupt, fmt::format("tensor '{}' is {} {} here, but {} {} on an earlier rank",
                                                 found->first, torch_name(dtype), to_string(shape),
                                                 torch_name(tensor.dtype), to_string(tensor.shape)));
  }
  return tensor;
}

std::vector<ListedTensor> RankGatherer::take() && {
  for (ListedTensor& tensor : tensors_) part_copies(tensor);
  return std::move(tensors_);
}

}  // namespace accel::ckpt
