#include "train/device/cuda.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"

namespace accel::train {
namespace {

void* cuda_module = nullptr;

std::filesystem::path module_path() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / kCudaModuleFile;
}

}  // namespace

void load_cuda(int device_index) {
  const std::filesystem::path path = module_path();
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::kFailure,
                fmt::format("this rank runs on a GPU, but '{}' does not exist", path.string()))
        .hint(
            "accel was built without the CUDA and NCCL headers; install them and build again, or use "
            "use_cpu: true");
  }
  cuda_module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (cuda_module == nullptr) {
    throw Error(ErrorKind::kFailure, fmt::format("cannot load libtorch's CUDA libraries: {}", ::dlerror()))
        .hint("run on the CPU with use_cpu: true");
  }
  const int visible = at::detail::getCUDAHooks().deviceCount();
  if (device_index >= visible) {
    throw Error(ErrorKind::kFailure,
                fmt::format("this rank runs on GPU {}, but libtorch sees {} GPUs", device_index, visible))
        .hint(
            "is the NVIDIA driver recent enough for this libtorch (nvidia-smi says)? use_cpu: true runs on "
            "the CPU");
  }
}

void* cuda_symbol(const char* name) {
  if (cuda_module == nullptr) return nullptr;
  void* const symbol = ::dlsym(cuda_module, name);
  if (symbol == nullptr)
    throw Error(ErrorKind::kFailure, fmt::format("'{}' does not fit this accel-worker", kCudaModuleFile));
  return symbol;
}

}  // namespace accel::train
