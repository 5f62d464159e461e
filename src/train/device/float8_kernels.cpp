#include "train/device/float8_kernels.hpp"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <cuda.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/device/float8_source.hpp"

namespace accel::train {
namespace {

/// Opens the library of libtorch that links NVRTC and the driver. It lies beside the other ones.
void* open_nvrtc() {
  Dl_info info;
  TORCH_CHECK(::dladdr(reinterpret_cast<void*>(&c10::cuda::getCurrentCUDAStream), &info) != 0,
              "libc10_cuda is not loaded in this process");
  const auto path = std::filesystem::path(info.dli_fname).parent_path() / "libcaffe2_nvrtc.so";
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, ::dlerror());
  return library;
}

template <class Function>
Function* symbol(void* library, const char* name) {
  void* const found = ::dlsym(library, name);
  TORCH_CHECK(found != nullptr, ::dlerror());
  return reinterpret_cast<Function*>(found);
}

void require(bool is_good, const char* what, int code) {
  TORCH_CHECK(is_good, what, " failed with the code ", code);
}

/// The kernels, compiled for the process's GPU.
class Kernels {
 public:
  Kernels() {
    void* const library = open_nvrtc();
    launch_ = symbol<decltype(::cuLaunchKernel)>(library, "cuLaunchKernel");
    get_function_ = symbol<decltype(::cuModuleGetFunction)>(library, "cuModuleGetFunction");
    const std::vector<char> binary = compile(library);
    const CUresult loaded =
        symbol<decltype(::cuModuleLoadData)>(library, "cuModuleLoadData")(&module_, binary.data());
    require(loaded == CUDA_SUCCESS, "cuModuleLoadData", loaded);
  }

  template <class... Arguments>
  void launch(const std::string& name, std::array<std::int64_t, 2> blocks, Arguments... arguments) const {
    CUfunction function = nullptr;
    const CUresult found = get_function_(&function, module_, name.c_str());
    require(found == CUDA_SUCCESS, "cuModuleGetFunction", found);
    std::array<void*, sizeof...(arguments)> addresses = {&arguments...};
    const CUresult launched =
        launch_(function, static_cast<unsigned>(blocks[0]), static_cast<unsigned>(blocks[1]), 1, kThreads, 1,
                1, 0, at::cuda::getCurrentCUDAStream(), addresses.data(), nullptr);
    require(launched == CUDA_SUCCESS, "cuLaunchKernel", launched);
  }

  static constexpr unsigned kThreads = 256;

 private:
  static std::vector<char> compile(void* library) {
    const auto check = [](nvrtcResult result, const char* what) {
      require(result == NVRTC_SUCCESS, what, result);
    };
    const cudaDeviceProp* const device = at::cuda::getCurrentDeviceProperties();
    const std::string target =
        "--gpu-architecture=sm_" + std::to_string(device->major) + std::to_string(device->minor);
    const std::array<const char*, 1> options = {target.c_str()};
    nvrtcProgram program = nullptr;
    check(symbol<decltype(::nvrtcCreateProgram)>(library, "nvrtcCreateProgram")(
              &program, kFloat8Source, "float8.cu", 0, nullptr, nullptr),
          "nvrtcCreateProgram");
    const nvrtcResult compiled = symbol<decltype(::nvrtcCompileProgram)>(library, "nvrtcCompileProgram")(
        program, options.size(), options.data());
    std::size_t size = 0;
    if (compiled != NVRTC_SUCCESS) {
      symbol<decltype(::nvrtcGetProgramLogSize)>(library, "nvrtcGetProgramLogSize")(program, &size);
      std::string log(size, ' ');
      symbol<decltype(::nvrtcGetProgramLog)>(library, "nvrtcGetProgramLog")(program, log.data());
      TORCH_CHECK(false, "for ", target, ": code ", static_cast<int>(compiled), "\n", log.c_str());
    }
    check(symbol<decltype(::nvrtcGetCUBINSize)>(library, "nvrtcGetCUBINSize")(program, &size),
          "nvrtcGetCUBINSize");
    std::vector<char> binary(size);
    check(symbol<decltype(::nvrtcGetCUBIN)>(library, "nvrtcGetCUBIN")(program, binary.data()),
          "nvrtcGetCUBIN");
    symbol<decltype(::nvrtcDestroyProgram)>(library, "nvrtcDestroyProgram")(&program);
    return binary;
  }

  CUmodule module_ = nullptr;  // Lives as long as the process.
  decltype(&::cuLaunchKernel) launch_ = nullptr;
  decltype(&::cuModuleGetFunction) get_function_ = nullptr;
};

/// Null if they cannot be had.
const Kernels* kernels() {
  static const Kernels* const found = []() -> const Kernels* {
    try {
      return new Kernels();
    } catch (const c10::Error& error) {
      TORCH_WARN("float8 casts take the slow way, as their kernels could not be compiled: ",
                 error.what_without_backtrace());
      return nullptr;
    }
  }();
  return found;
}

std::string name_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? "float32" : dtype == at::kHalf ? "float16" : "bfloat16";
}

void* address_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

std::int64_t quotient(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Returns as many blocks as one pass over so many elements needs, or as the GPU runs at a time.
std::array<std::int64_t, 2> blocks_for(std::int64_t elements_of_block, std::int64_t numel) {
  const std::int64_t at_once = std::int64_t{8} * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  return {std::clamp<std::int64_t>(quotient(numel, elements_of_block), 1, at_once), 1};
}

void cast(const Kernels& kernels, const Float8Request& request) {
  const at::Tensor& value = request.value;
  const auto numel = static_cast<std::uint64_t>(value.numel());
  const at::Tensor& result = request.by_row.defined() ? request.by_row : request.by_column;
  const bool e5m2 = result.scalar_type() == at::kFloat8_e5m2;
  if (request.given.defined()) {
    kernels.launch("flat_" + name_of(value.scalar_type()),
                   blocks_for(std::int64_t{Kernels::kThreads} * 4, value.numel()), value.data_ptr(), numel,
                   request.given.data_ptr(), e5m2, request.by_row.data_ptr());
    return;
  }
  const auto rows = static_cast<std::uint32_t>(value.size(0));
  const auto columns = static_cast<std::uint32_t>(value.size(1));
  const auto padded =
      static_cast<std::uint32_t>(request.by_column.defined() ? request.by_column.size(1) : rows);
  const std::array<std::int64_t, 2> blocks = {quotient(columns, 128), quotient(padded, 64)};
  if (value.element_size() == 1) {
    kernels.launch("transpose", blocks, value.data_ptr(), rows, columns, padded,
                   request.by_column.data_ptr());
    return;
  }
  const at::Tensor amax = at::zeros({1}, value.options().dtype(at::kInt));
  const std::string name = name_of(value.scalar_type());
  kernels.launch("largest_" + name,
                 blocks_for(Kernels::kThreads * (16 / value.element_size()), value.numel()), value.data_ptr(),
                 numel, amax.data_ptr());
  kernels.launch("cast_" + name, blocks, value.data_ptr(), rows, columns, padded, amax.data_ptr(), e5m2,
                 address_of(request.by_row), address_of(request.by_column), request.scale.data_ptr());
}

}  // namespace
}  // namespace accel::train

extern "C" __attribute__((visibility("default"))) bool accel_cast_float8(
    const accel::train::Float8Request& request) {
  // The driver's functions want a context, which a thread has after its first call of the runtime.
  C10_CUDA_CHECK(c10::cuda::SetDevice(request.value.device().index(), /*force=*/true));
  const accel::train::Kernels* const kernels = accel::train::kernels();
  if (kernels == nullptr) return false;
  accel::train::cast(*kernels, request);
  return true;
}
