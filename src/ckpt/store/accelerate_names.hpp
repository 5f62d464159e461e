#pragma once

#include <string>
#include <string_view>

namespace accel::ckpt {

/// The names that Accelerate gives to the parts of a checkpoint begin with these.
inline constexpr std::string_view kModelStem = "pytorch_model_fsdp";
inline constexpr std::string_view kOptimizerStem = "optimizer";

/// The name without extension of the file that holds a whole model or optimizer: `stem` for index 0, and
/// otherwise `{stem}_{index}`.
[[nodiscard]] std::string file_stem(std::string_view stem, int index);

/// The name of the directory of a sharded checkpoint: `{stem}_{index}`, also for index 0.
[[nodiscard]] std::string sharded_directory(std::string_view stem, int index);
/// The number of a sharded_directory().
[[nodiscard]] int index_of_directory(std::string_view name);

}  // namespace accel::ckpt
