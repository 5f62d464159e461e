#pragma once

#include <filesystem>
#include <vector>

namespace accel::ckpt {

/// The files of a Hugging Face model directory that belong beside its weights, sorted: configuration,
/// tokenizer, chat template, code. Weights, their indices and training state are not among them. Throws Error
/// (kMissing) if `directory` is not there or has none.
[[nodiscard]] std::vector<std::filesystem::path> find_assets(const std::filesystem::path& directory);

}  // namespace accel::ckpt
