#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace accel::ckpt {

/// Where the model or optimizer number `index` of a training's checkpoint is, in whichever of Accelerate's
/// forms it was saved: the directory of a sharded one, or the file of a full or of rank 0's local one.
/// Nothing if there is none. `stem` is kModelStem or kOptimizerStem. What else lies beside it, such as merged
/// weights, does not count.
[[nodiscard]] std::optional<std::filesystem::path> saved_part(const std::filesystem::path& checkpoint,
                                                              std::string_view stem, int index = 0);

}  // namespace accel::ckpt
