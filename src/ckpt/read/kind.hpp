#pragma once

#include <filesystem>
#include <string_view>

namespace accel::ckpt {

/// What sort of thing a path holds, judged by names and first bytes.
enum class Kind {
  kDcp,                 ///< A directory with `.metadata`: a sharded checkpoint.
  kDcpSafetensors,      ///< A directory of `shard-*.safetensors`: DCP's other form.
  kSafetensors,         ///< A safetensors file.
  kSafetensorsSharded,  ///< A directory of several, with or without an index.
  kTorch,               ///< A torch.save archive.
  kTorchSharded,        ///< A directory of several, with an index.
  kTorchScript,         ///< A torch.save archive with code.
  kLocal,               ///< Files of flat shards, one a rank, each with its `.json`.
  kDtensor,             ///< Files of torch.save, one a rank, with DTensors.
  kDirectory,           ///< None of these, but there may be checkpoints in it.
  kUnknown,
};

/// "dcp", "dcp-safetensors", "safetensors", "safetensors-sharded", "torch", "torch-sharded", "torchscript",
/// "local", "dtensor", "directory", "unknown".
[[nodiscard]] std::string_view name_of(Kind kind);

/// Of a rank's own file, the kind of the set that it belongs to. Throws Error (kMissing) if nothing is there.
[[nodiscard]] Kind kind_of(const std::filesystem::path& path);

}  // namespace accel::ckpt
