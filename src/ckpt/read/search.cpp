#include "ckpt/read/search.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/text.hpp"
#include "ckpt/read/folders.hpp"
#include "ckpt/read/rank_files.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/weight_index.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

/// The ending of the files that DeepSpeed's ZeRO writes for the optimizer of a rank.
constexpr std::string_view kZeroOptimizer = "_optim_states.pt";

enum class Role { kModel, kOptimizer, kOther };

struct Candidate {
  fs::path path;
  Role role = Role::kModel;
};

struct Damaged {
  DamagedCheckpoint what;
  Role role = Role::kModel;
};

struct Search {
  std::vector<Candidate> found;
  std::vector<Candidate> doubles;  ///< Models that are also there in another format.
  std::vector<Damaged> damaged;
  std::vector<DamagedCheckpoint> without_model;  ///< Directories of a save that have lost their model.
  std::vector<fs::path> zero;                    ///< Directories of DeepSpeed's ZeRO.
  std::vector<fs::path> left_over;               ///< Directories of an interrupted removal or writer.
};

Role role_of(const fs::path& path) {
  // Files that Accelerate, transformers and verl pickle, and a directory of accel. A model may have a longer
  // name.
  constexpr std::array<std::string_view, 9> kOthers = {"scheduler",      "sampler",           "dl_state_dict",
                                                       "scaler",         "rng_state",         "training_args",
                                                       "training_state", "custom_checkpoint", "extra_state"};
  const std::string name = path.filename().string();
  // verl's files of an optimizer are named optim_world_size_*.
  if (name.starts_with(kOptimizerStem) || name.starts_with("optim_") || name.ends_with(kZeroOptimizer))
    return Role::kOptimizer;
  if (path.extension() == ".safetensors") return Role::kModel;
  std::error_code unreadable;
  const bool is_whole = fs::is_directory(path, unreadable);
  const bool other = std::any_of(kOthers.begin(), kOthers.end(), [&](std::string_view prefix) {
    return is_whole ? name == prefix : name.starts_with(prefix);
  });
  return other ? Role::kOther : Role::kModel;
}

// `checkpoint_12` of Accelerate and the training, `checkpoint-12` of transformers.
bool is_directory_of_a_save(std::string_view name) {
  constexpr std::string_view kStart = "checkpoint";
  if (name.size() < kStart.size() + 2 || !name.starts_with(kStart)) return false;
  const char separator = name[kStart.size()];
  return (separator == '_' || separator == '-') && is_digits(name.substr(kStart.size() + 1));
}

bool names_a_save(const std::string& name) {
  return is_directory_of_a_save(name) || name.starts_with(kModelStem);
}

// The name of a shard that is missing from a set without an index. An index would name it.
std::optional<std::string> lost_shard(const fs::path& directory, const std::string& name) {
  const std::optional<WeightShard> shard = parse_weight_shard(name);
  if (!shard || fs::exists(directory / (shard->stem + shard->extension + ".index.json"))) return std::nullopt;
  return missing_shard(directory, name);
}

// Adds the files that are checkpoints by themselves. Of a set of rank files it adds the lowest rank's.
void add_files(const fs::path& directory, Search& search) {
  std::set<std::string> missing;  // Each is named once for all shards of its set.
  const auto add = [&](const std::string& name) {
    const Role role = role_of(directory / name);
    const std::optional<std::string> lost = lost_shard(directory, name);
    if (!lost) {
      search.found.push_back({directory / name, role});
    } else if (missing.insert(*lost).second) {
      search.damaged.push_back(
          {{directory / name, fmt::format("is part of a set without '{}'", *lost)}, role});
    }
  };
  const std::vector<std::string> safetensors = files_in(directory, "", ".safetensors");
  for (const std::string& name : safetensors) add(name);
  const bool has_model = std::any_of(safetensors.begin(), safetensors.end(),
                                     [&](const std::string& name) { return role_of(name) == Role::kModel; });
  std::vector<std::string> names;
  for (const char* ending : {".bin", ".pt", ".pth"}) {
    const std::vector<std::string> found = files_in(directory, "", ending);
    names.insert(names.end(), found.begin(), found.end());
  }
  const std::vector<RankFiles> sets = take_rank_sets(directory, names);
  for (const std::string& name : names) {
    if (has_model && name == "pytorch_model.bin") {
      search.doubles.push_back({directory / name, Role::kModel});
    } else {
      add(name);
    }
  }
  for (const RankFiles& set : sets) add(set.files.begin()->second);
}

// Adds entries that are named like a checkpoint or one of its files, but cannot be opened.
void add_unreadable(const fs::path& directory, Search& search) {
  constexpr std::array<std::string_view, 5> kEndings = {".safetensors", ".bin", ".pt", ".pth", ".index.json"};
  for (const std::string& name : names_in(directory)) {
    const fs::path path = directory / name;
    std::error_code unreadable;
    const fs::file_status status = fs::status(path, unreadable);
    if (name.starts_with('.') || fs::is_regular_file(status) || fs::is_directory(status)) continue;
    const bool is_file = std::any_of(kEndings.begin(), kEndings.end(),
                                     [&](std::string_view ending) { return name.ends_with(ending); });
    if (!is_file && !names_a_save(name)) continue;
    search.damaged.push_back(
        {{path, fs::exists(status) ? "is not a regular file" : "is a link to nothing"}, role_of(path)});
  }
}

bool is_readable(const fs::path& directory) { return ::access(directory.c_str(), R_OK | X_OK) == 0; }

void search_in(const fs::path& directory, int depth, Search& search) {
  const Role role = role_of(directory);
  const Kind kind = kind_of(directory);
  const std::size_t found_before = search.found.size();
  const std::size_t damaged_before = search.damaged.size();
  if (kind != Kind::kDirectory) {
    search.found.push_back({directory, role});
    // There may be checkpoints beside a model, whether it is in one file or in several.
    if (kind == Kind::kDcp || depth < kSearchDepth) return;
  }
  if (kind == Kind::kDirectory) add_files(directory, search);
  if (!files_in(directory, "", kZeroOptimizer).empty()) search.zero.push_back(directory);
  add_unreadable(directory, search);
  if (kind == Kind::kDirectory && !files_in(directory, "", ".distcp").empty())
    search.damaged.push_back({{directory, "has .distcp files but no .metadata"}, role});
  const std::vector<Folder> folders = depth == 0 ? std::vector<Folder>{} : folders_in(directory);
  for (const Folder& folder : folders) {
    const fs::path& below = folder.path;
    if (folder.hidden) continue;
    if (!is_readable(below)) {
      if (names_a_save(below.filename().string()))
        search.damaged.push_back({{below, "cannot be read"}, role_of(below)});
    } else if (folder.state == Folder::State::kUnfinished) {
      search.damaged.push_back({{below, "is a save that has not finished"}, role_of(below)});
    } else if (folder.state == Folder::State::kLeftOver) {
      search.left_over.push_back(below);
    } else {
      search_in(below, depth - 1, search);
    }
  }
  const std::string name = directory.filename().string();
  const bool is_empty = search.found.size() == found_before && search.damaged.size() == damaged_before;
  if (is_empty && name.starts_with(kModelStem))
    search.damaged.push_back({{directory, "holds no checkpoint"}, role});
  const auto is_model = [](const auto& one) { return one.role == Role::kModel; };
  const bool has_model = std::any_of(search.found.begin() + static_cast<std::ptrdiff_t>(found_before),
                                     search.found.end(), is_model) ||
                         std::any_of(search.damaged.begin() + static_cast<std::ptrdiff_t>(damaged_before),
                                     search.damaged.end(), is_model);
  // Directories on the last level have not been searched.
  if (!has_model && depth > 0 && depth < kSearchDepth && is_directory_of_a_save(name))
    search.without_model.push_back({directory, "holds no checkpoint of a model"});
}

// `path` without a slash at its end: with one, filename() is empty.
fs::path directory_named(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

Search search_all(const fs::path& directory) {
  Search search;
  search_in(directory, kSearchDepth, search);
  return search;
}

bool fits(Role role, Want want) {
  return want == Want::kAny || role == (want == Want::kModel ? Role::kModel : Role::kOptimizer);
}

std::vector<Candidate> choose(const std::vector<Candidate>& found, Want want) {
  std::vector<Candidate> chosen;
  const auto take = [&](auto test) {
    if (chosen.empty()) std::copy_if(found.begin(), found.end(), std::back_inserter(chosen), test);
  };
  take([&](const Candidate& c) { return fits(c.role, want) && c.role != Role::kOther; });
  if (want == Want::kAny) take([](const Candidate& c) { return c.role == Role::kOther; });
  return chosen;
}

std::vector<fs::path> paths_of(const std::vector<Candidate>& candidates) {
  std::vector<fs::path> paths;
  paths.reserve(candidates.size());
  for (const Candidate& candidate : candidates) paths.push_back(candidate.path);
  std::sort(paths.begin(), paths.end());
  return paths;
}

void sort_by_path(std::vector<DamagedCheckpoint>& damaged) {
  std::sort(damaged.begin(), damaged.end(),
            [](const DamagedCheckpoint& a, const DamagedCheckpoint& b) { return a.path < b.path; });
}

std::vector<DamagedCheckpoint> damaged_in(const Search& search, Want want) {
  std::vector<DamagedCheckpoint> damaged;
  for (const Damaged& one : search.damaged) {
    if (fits(one.role, want)) damaged.push_back(one.what);
  }
  if (want == Want::kModel)
    damaged.insert(damaged.end(), search.without_model.begin(), search.without_model.end());
  sort_by_path(damaged);
  return damaged;
}

[[noreturn]] void refuse_damaged(const fs::path& path, const std::vector<DamagedCheckpoint>& damaged,
                                 const std::vector<fs::path>& sound) {
  const bool repairable = std::any_of(damaged.begin(), damaged.end(), [](const DamagedCheckpoint& one) {
    return one.why.find("no .metadata") != std::string::npos;
  });
  throw Error(ErrorKind::kMissing,
              fmt::format("'{}' holds an incomplete checkpoint: {}", path.string(), to_string(damaged)))
      .hint(!sound.empty()
                ? fmt::format("name the checkpoint that is meant, such as '{}'", sound.back().string())
            : repairable ? "the save did not finish, or files were lost; 'accel repair' rebuilds the lost "
                           ".metadata of one that accel wrote"
                         : "the save did not finish, or files were lost");
}

[[noreturn]] void refuse_none(const fs::path& path, const Search& search, Want want) {
  const char* what = want == Want::kModel       ? "checkpoint of a model"
                     : want == Want::kOptimizer ? "checkpoint of an optimizer"
                                                : "checkpoint and no model";
  const std::string text = fmt::format("'{}' holds no {}", path.string(), what);
  const auto optimizer = std::find_if(search.found.begin(), search.found.end(),
                                      [](const Candidate& c) { return c.role == Role::kOptimizer; });
  if (want == Want::kModel && optimizer != search.found.end()) {
    throw Error(ErrorKind::kMissing,
                fmt::format("{}, but an optimizer's: '{}'", text, optimizer->path.string()))
        .hint("an optimizer is taken only if it is named itself");
  }
  if (!search.left_over.empty()) {
    throw Error(ErrorKind::kMissing,
                fmt::format("{}: '{}' is left over", text, search.left_over.front().string()))
        .hint("a removal or a command was interrupted there; use another checkpoint");
  }
  throw Error(ErrorKind::kMissing, text)
      .hint("give the checkpoint itself, or a directory up to three levels above it");
}

[[noreturn]] void refuse_zero(const fs::path& directory) {
  throw Error(
      ErrorKind::kFailure,
      fmt::format("'{}' is a checkpoint of DeepSpeed's ZeRO, whose ranks have parts of tensors that accel "
                  "does not put together",
                  directory.string()))
      .hint(
          "zero_to_fp32.py, which DeepSpeed writes beside that folder, makes the weights of it; of ZeRO 1 "
          "and 2, mp_rank_00_model_states.pt has the weights in the precision of the training");
}

[[noreturn]] void refuse_several(const fs::path& path, const std::vector<fs::path>& several) {
  std::vector<std::string> names;
  names.reserve(several.size());
  for (const fs::path& one : several) names.push_back(one.string());
  throw Error(ErrorKind::kUsage, fmt::format("'{}' holds {} checkpoints: {}", path.string(), names.size(),
                                             fmt::join(names, ", ")))
      .hint("name one of them");
}

}  // namespace

FoundCheckpoint find_checkpoint(const fs::path& path, Want want) {
  const Kind kind = kind_of(path);
  if (!fs::is_directory(path) || kind == Kind::kDcp) return {path, {}};
  const fs::path directory = directory_named(path);
  const Search search = search_all(directory);
  std::vector<fs::path> chosen = paths_of(choose(search.found, want));
  const std::vector<DamagedCheckpoint> damaged = damaged_in(search, want);
  if (kind != Kind::kDirectory) std::erase(chosen, directory);
  if (!damaged.empty()) refuse_damaged(path, damaged, chosen);
  if (chosen.empty() && kind == Kind::kDirectory) refuse_none(path, search, want);

  // A model in the directory itself is preferred to deeper ones: a finished model lies beside its
  // checkpoints.
  Search here;
  if (want != Want::kAny) add_files(directory, here);
  std::erase_if(here.found, [&](const Candidate& c) { return !fits(c.role, want); });
  FoundCheckpoint result;
  if (kind != Kind::kDirectory) {
    result.path = path;
  } else if (!search.zero.empty() && (here.found.size() != 1 || search.zero.front() == directory)) {
    refuse_zero(search.zero.front());
  } else if (here.found.size() == 1) {
    result.path = here.found.front().path;
  } else if (chosen.size() == 1) {
    result.path = chosen.front();
  } else {
    refuse_several(path, chosen);
  }
  for (const fs::path& other : chosen) {
    if (other != result.path) result.passed_over.push_back(other);
  }
  for (const Candidate& other : search.doubles) {
    if (fits(other.role, want)) result.passed_over.push_back(other.path);
  }
  std::sort(result.passed_over.begin(), result.passed_over.end());
  return result;
}

CheckpointList list_checkpoints(const fs::path& directory) {
  const Search search = search_all(directory_named(directory));
  std::vector<DamagedCheckpoint> damaged = damaged_in(search, Want::kAny);
  damaged.insert(damaged.end(), search.without_model.begin(), search.without_model.end());
  sort_by_path(damaged);
  return {paths_of(search.found), std::move(damaged)};
}

std::string to_string(const std::vector<DamagedCheckpoint>& damaged) {
  std::vector<std::string> parts;
  parts.reserve(damaged.size());
  for (const DamagedCheckpoint& one : damaged)
    parts.push_back(fmt::format("'{}' {}", one.path.string(), one.why));
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace accel::ckpt
