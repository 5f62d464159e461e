#include "train/graph/run/compiled_code.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/version.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "base/error.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace accel::train {
namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorKind::kFailure,
              fmt::format("cannot load compiled code of the model: {}: {}", what, std::strerror(errno)))
      .hint("train without it: dynamo_backend: NO");
}

/// A file in memory with the bytes of a library. It stays open until the process ends: the dynamic linker
/// knows libraries by their paths, and would take a descriptor with the same number for this library.
std::string path_of(std::span<const std::byte> library) {
  const int file = ::memfd_create("accel-compiled-code", MFD_CLOEXEC);
  if (file < 0) fail("memfd_create");
  for (std::size_t written = 0; written < library.size();) {
    const ssize_t count = ::write(file, library.data() + written, library.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("write");
    written += static_cast<std::size_t>(count);
  }
  return fmt::format("/proc/self/fd/{}", file);
}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

class CompiledCode::Library {
 public:
  explicit Library(std::span<const std::byte> bytes) : runner_(path_of(bytes)) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) { return runner_.boxed_run(std::move(inputs)); }

 private:
  torch::inductor::AOTIModelContainerRunnerCpu runner_;
};

CompiledCode::CompiledCode(CompiledPackage description, std::span<const std::byte> forward,
                           std::span<const std::byte> backward)
    : description_(std::move(description)) {
  try {
    forward_ = std::make_unique<Library>(forward);
    backward_ = std::make_unique<Library>(backward);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kFailure,
                fmt::format("cannot load compiled code of the model: {}", first_line(error)))
        .hint("export the model again on a machine like this one, or train with dynamo_backend: NO");
  }
}

CompiledCode::~CompiledCode() = default;

std::vector<at::Tensor> CompiledCode::forward(std::vector<at::Tensor> inputs) const {
  return forward_->run(std::move(inputs));
}

std::vector<at::Tensor> CompiledCode::backward(std::vector<at::Tensor> inputs) const {
  return backward_->run(std::move(inputs));
}

// clang 14 does not know the names of f16c, lzcnt and movbe. The check for avx2 also says that the operating
// system saves the registers.
bool has_instruction_set(const std::string& name) {
#if defined(__x86_64__)
  if (name != "x86-64-v3" || __builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0 ||
      __builtin_cpu_supports("bmi") == 0 || __builtin_cpu_supports("bmi2") == 0)
    return false;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_F16C) == 0 || (ecx & bit_MOVBE) == 0)
    return false;
  return __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_LZCNT) != 0;
#else
  return false;
#endif
}

std::string torch_version() {
  return fmt::format("{}.{}.{}", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH);
}

}  // namespace accel::train
