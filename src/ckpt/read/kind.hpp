#pragma once

#include <filesystem>
#include <string_view>

namespace accel::ckpt {

/// What a path holds, as file names and first bytes tell.
enum class Kind {
  kDcp,                 ///< A directory with `.metadata`: a sharded checkpoint.
  kDcpSafetensors,      ///< A directory of `shard-*.safetensors`: the form that DCP writes in safetensors.
  kSafetensors,         ///< A safetensors file.
  kSafetensorsSharded,  ///< A directory of several safetensors files, with or without an index.
  kTorch,               ///< A torch.save archive, or a file of torch.save before torch 1.6.
  kTorchSharded,        ///< A directory of several torch.save archives, with an index.
  kTorchScript,         ///< A torch.save archive with code.
  kPt2,                 ///< A model of torch.export.
  kLocal,               ///< A file of flat shards per rank, each with a `.json` beside it.
  kDtensor,             ///< A torch.save archive with DTensors per rank.
  kDirectory,           ///< A directory that is none of these, but may hold checkpoints.
  kUnknown,
};

/// "dcp", "dcp-safetensors", "safetensors", "safetensors-sharded", "torch", "torch-sharded", "torchscript",
/// "pt2", "local", "dtensor", "directory", "unknown".
[[nodiscard]] std::string_view name_of(Kind kind);

/// The kind of what `path` holds. For a file that one rank wrote it is the kind of the whole set. Throws
/// Error (kMissing) if nothing is there.
[[nodiscard]] Kind kind_of(const std::filesystem::path& path);

}  // namespace accel::ckpt
