#include "train/dist/nccl.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <filesystem>

#include "base/error.hpp"

namespace accel::train {
namespace {

void* plugin = nullptr;

std::filesystem::path plugin_path() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / kNcclPluginFile;
}

/// A function of the plugin.
template <class Function>
Function* function_of(const char* symbol) {
  const auto function = reinterpret_cast<Function*>(::dlsym(plugin, symbol));
  if (function == nullptr)
    throw Error(ErrorKind::kFailure, fmt::format("'{}' does not fit this accel-worker", kNcclPluginFile));
  return function;
}

}  // namespace

void load_cuda(int device_index) {
  const std::filesystem::path path = plugin_path();
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::kFailure,
                fmt::format("this rank is to run on a GPU, but '{}' is not there", path.string()))
        .hint(
            "accel was built without the CUDA and NCCL headers; install them and build again, or use "
            "use_cpu: true");
  }
  plugin = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr) {
    throw Error(ErrorKind::kFailure, fmt::format("cannot load libtorch's CUDA libraries: {}", ::dlerror()))
        .hint("run on the CPU with use_cpu: true");
  }
  const int visible = at::detail::getCUDAHooks().deviceCount();
  if (device_index >= visible) {
    throw Error(ErrorKind::kFailure, fmt::format("this rank is to run on GPU {}, but libtorch sees {} GPUs",
                                                 device_index, visible))
        .hint(
            "is the NVIDIA driver recent enough for this libtorch (nvidia-smi says)? use_cpu: true runs on "
            "the CPU");
  }
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const NcclRequest& request) {
  if (plugin == nullptr)
    throw Error(ErrorKind::kUsage, "backend: nccl needs a GPU a rank").hint("use backend: gloo");
  NcclVersions versions;
  function_of<GetNcclVersions>(kNcclVersionsSymbol)(versions);
  if (const auto mismatch = nccl_mismatch(versions)) {
    throw Error(ErrorKind::kFailure, *mismatch)
        .hint("build accel again with the nccl.h of this libtorch, or use launch.backend: gloo");
  }
  c10::intrusive_ptr<c10d::Backend> backend;
  function_of<MakeNccl>(kMakeNcclSymbol)(request, backend);
  return backend;
}

}  // namespace accel::train
