#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accel::ckpt {

/// The files of a Hugging Face model directory that belong beside its weights, sorted: configuration,
/// tokenizer, chat template, code. They are told by the names that transformers gives them. Warns of a link
/// that leads out of the directory and of the Hugging Face cache, and leaves it out. Throws Error (kMissing)
/// if `directory` is not there or has none.
[[nodiscard]] std::vector<std::filesystem::path> find_assets(const std::filesystem::path& directory);

/// The files of find_assets() that belong to a model whose weights, a file or a directory, are `weights`.
/// The configuration of an adapter is not among them. None unless a config.json of transformers lies beside
/// them: the directory is not that of a model then.
[[nodiscard]] std::vector<std::filesystem::path> assets_beside(const std::filesystem::path& weights);

/// The dtype that the config.json among `assets` names, such as "bfloat16", to which transformers rounds the
/// weights beside it. Empty if there is none.
[[nodiscard]] std::string dtype_of_config(const std::vector<std::filesystem::path>& assets);

/// The directory in which the user sees `path`, which is there and may be a link, end in a slash or be ".".
[[nodiscard]] std::filesystem::path directory_around(const std::filesystem::path& path);

/// The configuration that PEFT needs of the adapter in the directory `checkpoint` of a training: the file
/// that the checkpoint has from the notes of the model file, or else the one beside the model file `model`,
/// which may be empty. None if neither is there.
[[nodiscard]] std::vector<std::filesystem::path> adapter_assets(const std::filesystem::path& checkpoint,
                                                                const std::filesystem::path& model);

}  // namespace accel::ckpt
