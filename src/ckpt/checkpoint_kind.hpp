#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// What sort of thing a path holds, judged by names and first bytes.
enum class Kind {
  kDcp,          ///< A directory with `.metadata`: a sharded checkpoint.
  kDirectory,    ///< A directory without; there may be checkpoints in it.
  kSafetensors,  ///< A safetensors file.
  kTorch,        ///< A torch.save archive.
  kTorchScript,  ///< The same with code.
  kUnknown,
};

[[nodiscard]] std::string_view name_of(Kind kind);

/// Throws Error (kMissing) if nothing is there.
[[nodiscard]] Kind kind_of(const std::filesystem::path& path);

/// The DCP directories in `directory`, itself included, down to three levels; sorted.
[[nodiscard]] std::vector<std::filesystem::path> find_dcp_directories(const std::filesystem::path& directory);

/// The one DCP directory of a model that `path` is, or has in it: a directory called `optimizer*` does not
/// count beside others. Throws Error: kMissing if nothing is there or the save never finished, kUsage if
/// several are, with their names; kFailure for a kind that cannot be merged yet.
[[nodiscard]] std::filesystem::path find_model_directory(const std::filesystem::path& path);

}  // namespace accel::ckpt
