#pragma once

#include <filesystem>
#include <optional>
#include <string>
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

/// The name of a file that one rank wrote for itself: `pytorch_model_fsdp[_{i}]_rank{R}.bin` or
/// `optimizer[_{i}]_rank{R}.bin`.
struct RankFileName {
  std::string stem;  ///< What stands before `_rank`.
  int rank = 0;
};

/// Nothing if the name is not of that form.
[[nodiscard]] std::optional<RankFileName> parse_rank_file_name(std::string_view name);

}  // namespace accel::ckpt
