#pragma once

#include <torch/csrc/jit/frontend/error_report.h>

#include <filesystem>

#include "base/error.hpp"

namespace accel::train {

/// The Error (kUsage) of a model file at `path` whose TorchScript libtorch cannot compile: the reason, and
/// the line of the code with the module that it is in. `error` is what libtorch has thrown.
[[nodiscard]] Error compile_error(const std::filesystem::path& path, const torch::jit::ErrorReport& error);

}  // namespace accel::train
