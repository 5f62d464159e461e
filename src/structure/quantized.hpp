#pragma once

#include <string>
#include <string_view>

namespace accel {

/// Whether an attribute of that TorchScript type holds packed parameters, as quantized modules do: weights in
/// an opaque object, which can be neither sharded nor trained.
[[nodiscard]] bool is_packed_type(std::string_view type);

/// Throws an Error of kind kUsage that refuses a model because of `attribute` ("layers.0._packed_params"),
/// which is packed or a quantized tensor.
[[noreturn]] void refuse_quantized(const std::string& attribute);

}  // namespace accel
