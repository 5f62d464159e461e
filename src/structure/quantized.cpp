#include "structure/quantized.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace accel {

bool is_packed_type(std::string_view type) {
  return type.find("torch.classes.quantized.") != std::string_view::npos;
}

void refuse_quantized(const std::string& attribute) {
  throw Error(ErrorKind::kUsage, fmt::format("'{}' is quantized and cannot be trained", attribute))
      .hint("export the model as it was before quantization");
}

}  // namespace accel
