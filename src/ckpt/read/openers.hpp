#pragma once

#include <filesystem>
#include <memory>

#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

/// One function a kind, for open_checkpoint; each throws as that does. A set of files can be opened by the
/// directory that holds it.
[[nodiscard]] std::unique_ptr<Checkpoint> open_dcp(const std::filesystem::path& directory);
/// A safetensors file.
[[nodiscard]] std::unique_ptr<Checkpoint> open_safetensors(const std::filesystem::path& file);
/// Several of them: with an index, or with all tensors of all `*.safetensors`.
[[nodiscard]] std::unique_ptr<Checkpoint> open_sharded_safetensors(const std::filesystem::path& directory);
/// DCP's safetensors form: `shard-*.safetensors`, each with parts of tensors.
[[nodiscard]] std::unique_ptr<Checkpoint> open_dcp_safetensors(const std::filesystem::path& directory);
/// A file of torch.save.
[[nodiscard]] std::unique_ptr<Checkpoint> open_torch(const std::filesystem::path& file);
/// Several of them with an index, as transformers writes them.
[[nodiscard]] std::unique_ptr<Checkpoint> open_sharded_torch(const std::filesystem::path& directory);
/// A TorchScript model: the tensors that its state_dict() has.
[[nodiscard]] std::unique_ptr<Checkpoint> open_torchscript(const std::filesystem::path& file);
/// The set of rank files that `file` is one of, each with its `.json` (docs/formats.md, "Local checkpoints").
[[nodiscard]] std::unique_ptr<Checkpoint> open_local(const std::filesystem::path& file);
/// The set of rank files that `file` is one of, with DTensors, and plain tensors that every rank has.
[[nodiscard]] std::unique_ptr<Checkpoint> open_dtensor(const std::filesystem::path& file);

}  // namespace accel::ckpt
