#include "core/launch/find_program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::core {
namespace {

bool is_executable(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::filesystem::path find_worker(const std::filesystem::path& executable,
                                  const std::filesystem::path& chosen, const Environment& environment) {
  if (!chosen.empty()) {
    if (is_executable(chosen)) return chosen;
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is not an executable file", chosen.string()));
  }
  const std::filesystem::path folder = executable.parent_path();
  for (const char* relative : {"../libexec/accel/accel-worker", "../train/accel-worker"}) {
    std::filesystem::path candidate = (folder / relative).lexically_normal();
    if (is_executable(candidate)) return candidate;
  }
  if (const auto named = environment("ACCEL_WORKER")) {
    if (is_executable(*named)) return *named;
    throw Error(ErrorKind::kUsage, fmt::format("ACCEL_WORKER: '{}' is not an executable file", *named));
  }
  throw Error(ErrorKind::kFailure,
              fmt::format("accel-worker is not installed beside '{}'", executable.string()))
      .hint("build accel with its worker, or name one in ACCEL_WORKER");
}

std::filesystem::path find_program(const std::string& name, const Environment& environment) {
  if (name.find('/') != std::string::npos) {
    if (is_executable(name)) return name;
    std::error_code error;
    Error failure(ErrorKind::kUsage,
                  fmt::format("'{}' {}", name,
                              std::filesystem::exists(name, error) ? "is not executable" : "does not exist"));
    if (name.ends_with(".py"))
      throw std::move(failure).hint(fmt::format("for a Python script: -- python3 {}", name));
    throw std::move(failure);
  }
  for (const std::string& folder : split(environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
    std::filesystem::path candidate = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (is_executable(candidate)) return candidate;
  }
  Error failure(ErrorKind::kUsage, fmt::format("program '{}' is not found along PATH", name));
  if (name.ends_with(".py"))
    throw std::move(failure).hint(fmt::format("for a Python script: -- python3 {}", name));
  throw std::move(failure);
}

}  // namespace accel::core
