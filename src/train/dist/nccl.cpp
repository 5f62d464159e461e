#include "train/dist/nccl.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <filesystem>

#include "base/error.hpp"
#include "train/dist/nccl_plugin.hpp"

namespace accel::train {
namespace {

void* plugin = nullptr;

std::filesystem::path plugin_path() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / kNcclPluginFile;
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

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            const std::vector<int>& members, const std::string& name,
                                            c10::Device device) {
  if (plugin == nullptr)
    throw Error(ErrorKind::kUsage, "backend: nccl needs a GPU a rank").hint("use backend: gloo");
  const auto make = reinterpret_cast<MakeNccl*>(::dlsym(plugin, kMakeNcclSymbol));
  if (make == nullptr)
    throw Error(ErrorKind::kFailure, fmt::format("'{}' does not fit this accel-worker", kNcclPluginFile));
  c10::intrusive_ptr<c10d::Backend> backend;
  make(store, rank, members, name, device, backend);
  return backend;
}

}  // namespace accel::train
