#pragma once

#include <array>
#include <string_view>

namespace accel::config {

/// An accelerator of Accelerate's `distributed_type` on which accel does not train, and what it would need.
/// Source: accelerate 1.15, PartialState._prepare_backend (docs/accelerators.md).
struct OtherAccelerator {
  std::string_view distributed_type;
  std::string_view devices;  ///< What messages call them.
  std::string_view package;  ///< What has the device's part of libtorch and its c10d backend.
  std::string_view library;  ///< The library of collectives.
  std::string_view backend;  ///< The name of the c10d backend.
};

inline constexpr auto kOtherAccelerators = std::to_array<OtherAccelerator>({
    {"MULTI_XPU", "Intel GPUs", "a torch that is built for XPUs", "oneCCL", "xccl"},
    {"MULTI_NPU", "Ascend NPUs", "torch_npu", "HCCL", "hccl"},
    {"MULTI_MLU", "Cambricon MLUs", "torch_mlu", "CNCL", "cncl"},
    {"MULTI_MUSA", "Moore Threads GPUs", "torch_musa", "MCCL", "mccl"},
    {"MULTI_SDAA", "SDAA devices", "torch_sdaa", "TCCL", "tccl"},
    {"MULTI_HPU", "Gaudi accelerators", "habana_frameworks.torch", "Gaudi's HCCL", "hccl"},
    {"MULTI_NEURON", "AWS Neuron devices", "torch_neuronx", "Neuron's collectives", "neuron"},
});

/// Returns the row of a value of `distributed_type`, or nullptr.
constexpr const OtherAccelerator* find_other_accelerator(std::string_view distributed_type) {
  for (const OtherAccelerator& row : kOtherAccelerators) {
    if (row.distributed_type == distributed_type) return &row;
  }
  return nullptr;
}

}  // namespace accel::config
