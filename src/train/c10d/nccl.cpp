#include "train/c10d/nccl.hpp"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.hpp"
#include "train/device/accelerator.hpp"

namespace accel::train {

c10::intrusive_ptr<c10d::Backend> make_nccl(const NcclRequest& request) {
  void* const get_versions = accelerator_symbol(kNcclVersionsSymbol);
  if (get_versions == nullptr)
    throw Error(ErrorKind::kUsage, "backend: nccl needs a GPU for each rank").hint("use backend: gloo");
  NcclVersions versions;
  reinterpret_cast<GetNcclVersions*>(get_versions)(versions);
  if (const auto mismatch = nccl_mismatch(versions)) {
    throw Error(ErrorKind::kFailure, *mismatch)
        .hint("build accel again with the nccl.h of this libtorch, or use launch.backend: gloo");
  }
  c10::intrusive_ptr<c10d::Backend> backend;
  reinterpret_cast<MakeNccl*>(accelerator_symbol(kMakeNcclSymbol))(request, backend);
  return backend;
}

}  // namespace accel::train
