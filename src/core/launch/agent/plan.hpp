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
  Variables variables;               ///< Over the launcher's own environment.
  std::filesystem::path log_dir;     ///< For stdout.log and stderr.log; exists already. Empty: no log files.
  std::filesystem::path error_file;  ///< TORCHELASTIC_ERROR_FILE.
};

/// All that the supervisor needs to know; it decides nothing about the world itself.
struct LaunchPlan {
  std::string run_id;                ///< TORCHELASTIC_RUN_ID, unlike that of any other run.
  std::vector<std::string> command;  ///< command[0] is a path.
  std::vector<WorkerPlan> workers;   ///< This machine's, by local rank.
  double grace_period_s = 30;
  std::filesystem::path
      scratch;  ///< Private and temporary; the caller removes it, the guardian if the caller cannot.
};

}  // namespace accel::core
