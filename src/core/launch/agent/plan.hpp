#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace accel::core {

/// Environment variables by name.
using Variables = std::map<std::string, std::string>;

struct WorkerPlan {
  int rank = 0;
  Variables variables;               ///< Added to the launcher's environment, or in place of its values.
  std::filesystem::path log_dir;     ///< Has stdout.log and stderr.log; must exist. Empty: no log files.
  std::filesystem::path error_file;  ///< TORCHELASTIC_ERROR_FILE.
};

/// All that the supervisor needs to know.
struct LaunchPlan {
  std::string run_id;                ///< TORCHELASTIC_RUN_ID, unique to this run.
  std::vector<std::string> command;  ///< command[0] is a path.
  std::vector<WorkerPlan> workers;   ///< The workers of this machine, by local rank.
  double grace_period_s = 30;
  /// A private temporary directory. The caller removes it, or the guardian if the caller is killed.
  std::filesystem::path scratch;
};

}  // namespace accel::core
