#include "ckpt/store/accelerate_names.hpp"

#include <fmt/format.h>

namespace accel::ckpt {

std::string file_stem(std::string_view stem, int index) {
  return index == 0 ? std::string(stem) : sharded_directory(stem, index);
}

std::string sharded_directory(std::string_view stem, int index) { return fmt::format("{}_{}", stem, index); }

}  // namespace accel::ckpt
