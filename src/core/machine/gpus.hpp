#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.hpp"

namespace accel::machine {

struct Gpu {
  std::string name;                           ///< For example "NVIDIA H100 80GB HBM3".
  std::optional<std::uint64_t> memory_bytes;  ///< Only nvidia-smi says it.
};

/// The NVIDIA GPUs of this machine, whether visible to CUDA or not, and their driver.
struct Gpus {
  std::vector<Gpu> gpus;
  std::string driver;    ///< The version of the driver; empty if none is loaded.
  std::string why_less;  ///< What nvidia-smi could not say and why; empty if it answered or is not there.
};

/// What the driver says in its files below `root`.
[[nodiscard]] Gpus gpus_of_driver(const std::filesystem::path& root = "/");

/// Reads what `nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits` prints.
/// Lines of another form are left out.
[[nodiscard]] Gpus parse_nvidia_smi(std::string_view text);

/// What nvidia-smi says, or the driver's files if it is not there or does not answer within ten seconds.
/// `is_cancelled` is that of launch::output_of().
[[nodiscard]] Gpus find_gpus(const std::function<bool()>& is_cancelled);

/// The least compute capability in what `nvidia-smi --query-gpu=compute_cap --format=csv,noheader` prints,
/// such as 8.9. Nothing if a line is no such number.
[[nodiscard]] std::optional<double> parse_compute_capability(std::string_view text);

/// The names by which nvidia-smi finds the GPUs `gpu_ids`, joined by commas, or all visible GPUs if there are
/// no `gpu_ids`. These are indices into CUDA_VISIBLE_DEVICES; without that variable they are the numbers of
/// nvidia-smi. Empty for all GPUs of the machine.
[[nodiscard]] std::string names_for_nvidia_smi(const Environment& environment,
                                               const std::vector<int>& gpu_ids);

/// The least compute capability of the GPUs that names_for_nvidia_smi() says. Nothing if nvidia-smi is not
/// there, does not know it or does not answer within ten seconds.
[[nodiscard]] std::optional<double> least_compute_capability(const Environment& environment,
                                                             const std::vector<int>& gpu_ids);

}  // namespace accel::machine
