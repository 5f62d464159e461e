#include "ckpt/store/saved_parts.hpp"

#include <string>

#include "ckpt/store/accelerate_names.hpp"

namespace accel::ckpt {

std::optional<std::filesystem::path> saved_part(const std::filesystem::path& checkpoint,
                                                std::string_view stem, int index) {
  for (const std::string& name : {sharded_directory(stem, index), file_stem(stem, index) + ".bin",
                                  file_stem(stem, index) + "_rank0.bin"}) {
    if (std::filesystem::exists(checkpoint / name)) return checkpoint / name;
  }
  return std::nullopt;
}

}  // namespace accel::ckpt
