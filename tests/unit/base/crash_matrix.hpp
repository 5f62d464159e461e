#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files/fault.hpp"
#include "needs_faults.hpp"
#include "temp_dir.hpp"

namespace accel::testing {

/// What lies below a directory: the content of each path. The path of a directory ends with "/" and has none.
using Tree = std::map<std::string, std::string>;

inline Tree tree_of(const std::filesystem::path& directory) {
  Tree tree;
  if (!std::filesystem::exists(directory)) return tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().lexically_relative(directory).string();
    if (entry.is_directory()) {
      tree[name + "/"] = "";
    } else {
      tree[name] = read_file(entry.path());
    }
  }
  return tree;
}

enum class Ending { kSucceeded, kFailed, kKilled };

/// Runs `action` in a process of its own with a plan of faults (base/files/fault.hpp). An Error is kFailed.
inline Ending run_with_faults(const std::string& plan, const std::function<void()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    // The warnings are expected.
    if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(9);
    try {
      const fault::Scope scope(plan);
      action();
    } catch (const Error&) {
      ::_exit(1);
    } catch (...) {
      ::_exit(2);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return Ending::kKilled;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Ending::kSucceeded;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << plan << ": status " << status;
  return Ending::kFailed;
}

/// What a loss of power after these calls (Scope::points()) could lose or tear; empty if nothing.
/// A name given to a file or directory before its contents are synced is a defect, and so is a directory
/// whose new names are not synced before the seal appears, before anything is removed, or at the end.
inline std::string power_failure_defect(const std::vector<std::string>& points, const std::string& seal) {
  using Path = std::filesystem::path;
  const auto is_temporary = [](const Path& path) {
    const std::string name = path.filename().string();
    // The names of src/base have a token at the end, those of the checkpoints of a training do not.
    return name.find(".incomplete-") != std::string::npos || name.find(".deleting-") != std::string::npos ||
           name.ends_with(".incomplete") || name.ends_with(".deleting");
  };
  const auto is_hidden = [&](const Path& path) {
    return std::any_of(path.begin(), path.end(), is_temporary);
  };
  std::set<Path> files;        // Files with bytes that are not durable.
  std::set<Path> directories;  // Directories with names that are not durable.
  for (const std::string& point : points) {
    const std::string call = point.substr(0, point.find(' '));
    const Path path = point.substr(point.find(' ') + 1);
    const Path parent = path.parent_path();
    if (call == "write" || call == "copy" || call == "truncate" || call == "create") files.insert(path);
    if (call == "create" || (call == "mkdir" && !is_temporary(path))) directories.insert(parent);
    if (call == "sync") files.erase(path);
    if (call == "sync-dir") directories.erase(path);
    if ((call == "unlink" || call == "rmdir") && !directories.empty())
      return point + ", but new names in '" + directories.begin()->string() + "' are not synced";
    if (!call.starts_with("rename") && call != "exchange" && call != "link") continue;
    if (is_hidden(path)) {
      if (!is_temporary(path)) directories.insert(parent);
      continue;
    }
    if (!files.empty()) return point + ", but '" + files.begin()->string() + "' is not synced";
    for (const Path& directory : directories) {
      if (directory != parent || path.filename() == seal)
        return point + ", but new names in '" + directory.string() + "' are not synced";
    }
    directories.insert(parent);
  }
  return directories.empty() ? "" : "'" + directories.begin()->string() + "' is not synced at the end";
}

/// Work on a directory, to be interrupted at every call.
struct CrashScenario {
  std::function<void(const std::filesystem::path& dir)> prepare;
  std::function<void(const std::filesystem::path& dir)> work;
  std::string seal = {};    ///< The `seal` of power_failure_defect().
  std::string always = {};  ///< Faults in every run: what the file system cannot do.
};

/// One run with one fault.
struct CrashRun {
  std::string fault;  ///< "kill@3"
  std::string point;  ///< The call it hit: "rename".
  Ending ending = Ending::kSucceeded;
  std::filesystem::path dir;
};

/// Runs the scenario once for every call and every mode, in a fresh directory each; `check` sees what is
/// left. Returns the number of runs.
inline std::size_t run_crash_matrix(const CrashScenario& scenario,
                                    const std::function<void(const CrashRun&)>& check) {
  // There are thousands of syncs, so use a file system in memory where possible.
  if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  std::vector<std::string> points;
  {
    const TempDir dir;
    scenario.prepare(dir.path());
    const fault::Scope scope(scenario.always.empty() ? "count" : scenario.always);
    scenario.work(dir.path());
    points = scope.points();
  }
  // The log does not say which calls fail.
  if (scenario.always.find("link") == std::string::npos) {
    EXPECT_EQ(power_failure_defect(points, scenario.seal), "");
  }
  std::size_t runs = 0;
  for (const char* mode : {"kill@{}", "killafter@{}", "torn@{}", "fail@{}:ENOSPC", "fail@{}:EIO"}) {
    for (std::size_t n = 1; n <= points.size(); ++n) {
      const std::string point = points[n - 1].substr(0, points[n - 1].find(' '));
      const std::string name(mode);
      if (name.starts_with("torn") && point != "write" && point != "copy") continue;
      const TempDir dir;
      scenario.prepare(dir.path());
      CrashRun run;
      run.fault = name.substr(0, name.find('{')) + std::to_string(n) + name.substr(name.find('}') + 1);
      run.point = point;
      run.dir = dir.path();
      const std::string plan = run.fault + (scenario.always.empty() ? "" : "," + scenario.always);
      run.ending = run_with_faults(plan, [&] { scenario.work(dir.path()); });
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, run.fault + " " + points[n - 1]);
      EXPECT_EQ(run.ending == Ending::kKilled, !name.starts_with("fail"));
      check(run);
      ++runs;
    }
  }
  return runs;
}

}  // namespace accel::testing
