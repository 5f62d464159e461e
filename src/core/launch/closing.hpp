#pragma once

#include <cstdint>
#include <string>

#include "base/exit_code.hpp"
#include "core/config/config.hpp"

namespace accel::launch {

/// What a user can do after a training has ended with `code`: what there is of a finished one, or from which
/// checkpoint one that ended early goes on, how many steps are lost, and by which command. The attempt began
/// with `first_step`, and `done` is the last step that a rank has done; 0 if that is not known. Reads the
/// names and manifests of checkpoints. Empty if there is nothing to say.
[[nodiscard]] std::string closing_of(const config::TrainingConfig& training, ExitCode code,
                                     std::int64_t first_step, std::int64_t done);

}  // namespace accel::launch
