#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "temp_dir.hpp"

namespace accel::train::testing {

/// Writes tensors as a safetensors file (docs/formats.md), by their names.
inline void write_safetensors(const std::filesystem::path& path,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  static const std::map<at::ScalarType, const char*> kNames = {{at::kByte, "U8"},
                                                               {at::kUInt16, "U16"},
                                                               {at::kInt, "I32"},
                                                               {at::kLong, "I64"},
                                                               {at::kBool, "BOOL"},
                                                               {at::kHalf, "F16"},
                                                               {at::kBFloat16, "BF16"},
                                                               {at::kFloat, "F32"},
                                                               {at::kDouble, "F64"},
                                                               {at::kShort, "I16"},
                                                               {at::kFloat8_e4m3fn, "F8_E4M3"}};
  nlohmann::ordered_json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.contiguous();
    header[name] = {{"dtype", kNames.at(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {data.size(), data.size() + dense.nbytes()}}};
    data.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  }
  const std::string json = header.dump();
  const std::uint64_t bytes = json.size();
  std::string length(sizeof bytes, '\0');
  std::memcpy(length.data(), &bytes, sizeof bytes);
  accel::testing::write_file(path, length + json + data);
}

}  // namespace accel::train::testing
