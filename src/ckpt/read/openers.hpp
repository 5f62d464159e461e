#pragma once

#include <filesystem>
#include <memory>

#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

// One function per kind, for open_checkpoint; each throws what that throws.

/// A directory with `.metadata`, or with one of each rank.
[[nodiscard]] std::unique_ptr<Checkpoint> open_dcp(const std::filesystem::path& directory);
/// A safetensors file.
[[nodiscard]] std::unique_ptr<Checkpoint> open_safetensors(const std::filesystem::path& file);
/// A directory of safetensors files: those that its index names, or all of them if it has no index.
[[nodiscard]] std::unique_ptr<Checkpoint> open_sharded_safetensors(const std::filesystem::path& directory);
/// The form that DCP writes in safetensors: `shard-*.safetensors`, each with parts of tensors.
[[nodiscard]] std::unique_ptr<Checkpoint> open_dcp_safetensors(const std::filesystem::path& directory);
/// A file of torch.save.
[[nodiscard]] std::unique_ptr<Checkpoint> open_torch(const std::filesystem::path& file);
/// A directory of torch.save archives with an index, as transformers writes them.
[[nodiscard]] std::unique_ptr<Checkpoint> open_sharded_torch(const std::filesystem::path& directory);
/// A TorchScript model: the tensors that its state_dict() has.
[[nodiscard]] std::unique_ptr<Checkpoint> open_torchscript(const std::filesystem::path& file);
/// A model of torch.export: its parameters and persistent buffers.
[[nodiscard]] std::unique_ptr<Checkpoint> open_pt2(const std::filesystem::path& file);
/// The set of rank files that `file` is one of, each with its `.json` (docs/formats.md, "Local checkpoints").
[[nodiscard]] std::unique_ptr<Checkpoint> open_local(const std::filesystem::path& file);
/// The set of rank files that `file` is one of, with DTensors, and with plain tensors that every rank has.
[[nodiscard]] std::unique_ptr<Checkpoint> open_dtensor(const std::filesystem::path& file);

}  // namespace accel::ckpt
