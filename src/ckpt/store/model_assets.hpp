#pragma once

#include <filesystem>
#include <vector>

namespace accel::ckpt {

/// The files of a Hugging Face model directory that belong beside its weights, sorted: configuration,
/// tokenizer, chat template, code. Weights, their indices and training state are not among them. Throws Error
/// (kMissing) if `directory` is not there or has none.
[[nodiscard]] std::vector<std::filesystem::path> find_assets(const std::filesystem::path& directory);

/// The files of find_assets() that belong to a model whose weights, a file or a directory, are `weights`.
/// None if no config.json lies beside them: the directory is not that of a model then.
[[nodiscard]] std::vector<std::filesystem::path> assets_beside(const std::filesystem::path& weights);

/// The configuration that PEFT needs of the adapter in the directory `checkpoint` of a training: the file
/// that the checkpoint has from the notes of the model file, or else the one beside the model file `model`,
/// which may be empty. None if neither is there.
[[nodiscard]] std::vector<std::filesystem::path> adapter_assets(const std::filesystem::path& checkpoint,
                                                                const std::filesystem::path& model);

}  // namespace accel::ckpt
