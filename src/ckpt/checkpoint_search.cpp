#include "ckpt/checkpoint_search.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/directory.hpp"
#include "base/error.hpp"
#include "base/leftover.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr int kSearchDepth = 3;

enum class Role { kModel, kOptimizer, kOther };

struct Candidate {
  fs::path path;
  Role role = Role::kModel;
};

struct Search {
  std::vector<Candidate> found;
  std::vector<fs::path> unfinished;  ///< Directories in which a save ended early.
};

Role role_of(const fs::path& path) {
  constexpr std::array<std::string_view, 7> kOthers = {"scheduler", "sampler",   "dl_state_dict",    "scaler",
                                                       "rng_state", "training_", "custom_checkpoint"};
  const std::string name = path.filename().string();
  if (name.starts_with("optimizer")) return Role::kOptimizer;
  const bool other = std::any_of(kOthers.begin(), kOthers.end(),
                                 [&](std::string_view prefix) { return name.starts_with(prefix); });
  return other ? Role::kOther : Role::kModel;
}

bool is_abandoned(const fs::path& directory) {
  const std::string name = directory.filename().string();
  return name.ends_with(".incomplete") || name.ends_with(".deleting") || is_leftover_name(name);
}

std::vector<fs::path> directories_in(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    std::error_code unreadable;
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (!hidden && entry.is_directory(unreadable)) found.push_back(entry.path());
  }
  if (error) throw system_error("list", directory.string(), error.value());
  std::sort(found.begin(), found.end());
  return found;
}

// The files that are checkpoints by themselves; of a set of rank files the one of the lowest rank.
void add_files(const fs::path& directory, Search& search) {
  const auto add = [&](const std::string& name) {
    search.found.push_back({directory / name, role_of(directory / name)});
  };
  const std::vector<std::string> safetensors = files_in(directory, "", ".safetensors");
  for (const std::string& name : safetensors) add(name);
  const bool has_model = std::any_of(safetensors.begin(), safetensors.end(),
                                     [&](const std::string& name) { return role_of(name) == Role::kModel; });
  std::set<std::pair<std::string, int>> ranks;
  for (const std::string& name : files_in(directory, "", ".bin")) {
    const std::optional<RankFileName> rank = parse_rank_file_name(name);
    if (rank) {
      ranks.emplace(rank->stem, rank->rank);
    } else if (!has_model || name != "pytorch_model.bin") {
      add(name);
    }
  }
  std::string_view last;
  for (const auto& [stem, rank] : ranks) {
    if (stem != last) add(fmt::format("{}_rank{}.bin", stem, rank));
    last = stem;
  }
  for (const char* ending : {".pt", ".pth"}) {
    for (const std::string& name : files_in(directory, "", ending)) add(name);
  }
}

void search_in(const fs::path& directory, int depth, Search& search) {
  if (kind_of(directory) != Kind::kDirectory) {
    search.found.push_back({directory, role_of(directory)});
    return;
  }
  add_files(directory, search);
  if (!files_in(directory, "", ".distcp").empty()) search.unfinished.push_back(directory);
  if (depth == 0) return;
  for (const fs::path& below : directories_in(directory)) {
    if (is_abandoned(below)) {
      search.unfinished.push_back(below);
    } else {
      search_in(below, depth - 1, search);
    }
  }
}

[[noreturn]] void nothing_found(const fs::path& path, const Search& search, Want want) {
  if (!search.unfinished.empty()) {
    const fs::path& directory = search.unfinished.front();
    const std::string what = is_abandoned(directory) ? "is left over" : "has .distcp files but no .metadata";
    throw Error(ErrorKind::kMissing,
                fmt::format("'{}' holds no checkpoint: '{}' {}", path.string(), directory.string(), what))
        .hint("the save did not finish; use an earlier checkpoint");
  }
  const char* what = want == Want::kModel       ? "checkpoint of a model"
                     : want == Want::kOptimizer ? "checkpoint of an optimizer"
                                                : "checkpoint and no model";
  throw Error(ErrorKind::kMissing, fmt::format("'{}' holds no {}", path.string(), what))
      .hint("give the checkpoint itself, or a directory up to three levels above it");
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
  if (want == Want::kModel) {
    // An optimizer alone is what must have been meant.
    take([](const Candidate& c) { return c.role == Role::kOptimizer; });
  }
  if (want != Want::kOptimizer) take([](const Candidate& c) { return c.role == Role::kOther; });
  return chosen;
}

}  // namespace

fs::path find_checkpoint(const fs::path& path, Want want) {
  if (kind_of(path) != Kind::kDirectory) return path;
  // What lies in the directory itself goes before what lies deeper: a finished model beside its checkpoints.
  Search here;
  add_files(path, here);
  std::erase_if(here.found,
                [&](const Candidate& c) { return c.role == Role::kOther || !fits(c.role, want); });
  if (here.found.size() == 1 && want != Want::kAny) return here.found.front().path;

  Search search;
  search_in(path, kSearchDepth, search);
  const std::vector<Candidate> chosen = choose(search.found, want);
  if (chosen.empty()) nothing_found(path, search, want);
  if (chosen.size() > 1) {
    std::vector<std::string> names;
    names.reserve(chosen.size());
    for (const Candidate& candidate : chosen) names.push_back(candidate.path.string());
    std::sort(names.begin(), names.end());
    throw Error(ErrorKind::kUsage, fmt::format("'{}' holds {} checkpoints: {}", path.string(), names.size(),
                                               fmt::join(names, ", ")))
        .hint("name one of them");
  }
  return chosen.front().path;
}

std::vector<fs::path> list_checkpoints(const fs::path& directory) {
  Search search;
  search_in(directory, kSearchDepth, search);
  if (search.found.empty()) nothing_found(directory, search, Want::kAny);
  std::vector<fs::path> paths;
  for (const Candidate& candidate : search.found) paths.push_back(candidate.path);
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace accel::ckpt
