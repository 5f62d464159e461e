#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/file.hpp"
#include "base/progress.hpp"
#include "ckpt/plan/output_plan.hpp"
#include "ckpt/read/checkpoint.hpp"

namespace accel::ckpt {

struct WriteLimits {
  /// What the process may take, nearly; at least kLeastWriteMemory a thread.
  std::uint64_t memory_bytes = std::uint64_t{64} << 20;
  unsigned threads = 0;  ///< 0: two, or one where there is one core.
};

inline constexpr std::uint64_t kLeastWriteMemory = 16'000'000;

/// Writes the contents of one planned file into `out`, which is new and empty; does not sync it. Memory does
/// not grow with the tensors. `progress` counts the bytes of the file. Throws Error; the file is then of no
/// use.
void write_file(Checkpoint& source, const OutputFile& plan, File& out, const WriteLimits& limits,
                Progress& progress);

/// Throws Error (kFailure) if the file system of `directory` has less than `needed` bytes free.
void check_free_space(const std::filesystem::path& directory, std::uint64_t needed);

}  // namespace accel::ckpt
