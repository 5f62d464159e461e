#include "train/device/accelerator.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "base/files/fault.hpp"

namespace accel::train {
namespace {

void* module = nullptr;

std::filesystem::path module_path() {
  if (const char* const other = fault::device_module()) return other;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / kCudaModuleFile;
}

}  // namespace

c10::Device load_accelerator(int index) {
  const std::filesystem::path path = module_path();
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::kFailure,
                fmt::format("this rank runs on a GPU, but '{}' does not exist", path.string()))
        .hint(
            "accel was built without the CUDA and NCCL headers; install them and build again, or use "
            "use_cpu: true");
  }
  module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    throw Error(ErrorKind::kFailure, fmt::format("cannot load the libraries of the GPU: {}", ::dlerror()))
        .hint("run on the CPU with use_cpu: true");
  }
  const auto type = at::isPrivateUse1HooksRegistered() ? c10::DeviceType::PrivateUse1 : c10::DeviceType::CUDA;
  const int visible = c10::impl::VirtualGuardImpl(type).deviceCount();
  if (index >= visible) {
    throw Error(ErrorKind::kFailure,
                fmt::format("this rank runs on GPU {}, but libtorch sees {} GPUs", index, visible))
        .hint(
            "is the NVIDIA driver recent enough for this libtorch (nvidia-smi says)? use_cpu: true runs on "
            "the CPU");
  }
  return {type, static_cast<c10::DeviceIndex>(index)};
}

void* optional_accelerator_symbol(const char* name) {
  return module == nullptr ? nullptr : ::dlsym(module, name);
}

void* accelerator_symbol(const char* name) {
  void* const symbol = optional_accelerator_symbol(name);
  if (module != nullptr && symbol == nullptr)
    throw Error(ErrorKind::kFailure, fmt::format("'{}' does not fit this accel-worker", kCudaModuleFile));
  return symbol;
}

}  // namespace accel::train
