#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/files/file.hpp"
#include "base/progress.hpp"
#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

struct WriteLimits {
  /// About the memory that the process may take; at least kLeastWriteMemory per thread.
  std::uint64_t memory_bytes = std::uint64_t{64} << 20;
  unsigned threads = 0;  ///< The number of threads; 0 stands for two, or one if there is one core.
};

inline constexpr std::uint64_t kLeastWriteMemory = 16'000'000;

/// Writes the contents of one planned file into `out`, which must be new and empty, and does not sync it.
/// Memory does not grow with the tensors. `progress` counts the bytes of the file. Throws Error, after which
/// the file is useless.
void write_file(Checkpoint& source, const OutputFile& plan, File& out, const WriteLimits& limits,
                Progress& progress);

/// Throws Error (kFailure) if the file system of `directory` has less than `needed` bytes free.
void check_free_space(const std::filesystem::path& directory, std::uint64_t needed);

}  // namespace accel::ckpt
