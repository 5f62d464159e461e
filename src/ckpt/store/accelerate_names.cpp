#include "ckpt/store/accelerate_names.hpp"

#include <fmt/format.h>

#include <charconv>

namespace accel::ckpt {

std::string file_stem(std::string_view stem, int index) {
  return index == 0 ? std::string(stem) : sharded_directory(stem, index);
}

std::string sharded_directory(std::string_view stem, int index) { return fmt::format("{}_{}", stem, index); }

int index_of_directory(std::string_view name) {
  int index = 0;
  const std::string_view digits = name.substr(name.rfind('_') + 1);
  std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return index;
}

}  // namespace accel::ckpt
