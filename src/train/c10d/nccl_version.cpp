#include "train/c10d/nccl_version.hpp"

#include <fmt/format.h>

namespace accel::train {

NcclVersion NcclVersion::of_code(int code) {
  // The codes are those of NCCL_VERSION(X, Y, Z) in nccl.h.
  if (code < 10000) return {code / 1000, code / 100 % 10, code % 100};
  return {code / 10000, code / 100 % 100, code % 100};
}

std::string NcclVersion::text() const { return fmt::format("{}.{}.{}", major, minor, patch); }

std::optional<std::string> nccl_mismatch(const NcclVersions& versions) {
  const auto& [header, libtorch, library] = versions;
  if (header.major != libtorch.major || header.minor != libtorch.minor) {
    return fmt::format("accel was compiled with NCCL {}, but libtorch with NCCL {}", header.text(),
                       libtorch.text());
  }
  if (library.major != header.major || library.minor < header.minor) {
    return fmt::format("accel and libtorch were compiled with NCCL {}, but the loaded library is NCCL {}",
                       header.text(), library.text());
  }
  return std::nullopt;
}

}  // namespace accel::train
