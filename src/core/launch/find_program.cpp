#include "core/launch/find_program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::launch {
namespace {

bool is_executable(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

// The number behind the dot of python3.11; 0 if there is none.
int minor_version(const std::string& folder) {
  constexpr std::string_view kPrefix = "python3.";
  int minor = 0;
  if (folder.starts_with(kPrefix))
    std::from_chars(folder.data() + kPrefix.size(), folder.data() + folder.size(), minor);
  return minor;
}

// The worker of the accel-worker wheel, which lies beside the torch package. The newest Python goes first
// where several share a prefix.
std::optional<std::filesystem::path> worker_of_wheel(const std::filesystem::path& prefix) {
  std::optional<std::filesystem::path> found;
  int newest = 0;
  for (const char* libraries : {"lib", "lib64"}) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(prefix / libraries, error), end; !error && entry != end;
         entry.increment(error)) {
      const int minor = minor_version(entry->path().filename().string());
      if (minor <= newest) continue;
      // Debian's own pip installs into dist-packages.
      for (const char* packages : {"site-packages", "dist-packages"}) {
        std::filesystem::path candidate = entry->path() / packages / "accel_worker/accel-worker";
        if (!is_executable(candidate)) continue;
        found = std::move(candidate);
        newest = minor;
        break;
      }
    }
  }
  return found;
}

}  // namespace

std::filesystem::path find_worker(const std::filesystem::path& executable,
                                  const std::filesystem::path& chosen, const Environment& environment) {
  if (!chosen.empty()) {
    if (is_executable(chosen)) return chosen;
    throw Error(ErrorKind::kUsage, fmt::format("'{}' is not an executable file", chosen.string()));
  }
  if (const std::string named = environment("ACCEL_WORKER").value_or(""); !named.empty()) {
    if (is_executable(named)) return named;
    throw Error(ErrorKind::kUsage, fmt::format("ACCEL_WORKER: '{}' is not an executable file", named));
  }
  const std::filesystem::path folder = executable.parent_path();
  for (const char* relative : {"../libexec/accel/accel-worker", "../train/accel-worker"}) {
    std::filesystem::path candidate = (folder / relative).lexically_normal();
    if (is_executable(candidate)) return candidate;
  }
  if (auto worker = worker_of_wheel(folder.parent_path())) return *std::move(worker);
  throw Error(ErrorKind::kFailure,
              fmt::format("accel-worker is not installed beside '{}'", executable.string()))
      .hint(
          "the wheel accel_worker, which tools/dev package makes, adds it to a wheel's accel; or build accel "
          "with it, or name it in ACCEL_WORKER");
}

std::filesystem::path find_program(const std::string& name, const Environment& environment) {
  if (name.find('/') != std::string::npos) {
    if (is_executable(name)) return name;
    std::error_code error;
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' {}", name,
                            std::filesystem::exists(name, error) ? "is not executable" : "does not exist"));
  }
  for (const std::string& folder : split(environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
    std::filesystem::path candidate = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (is_executable(candidate)) return candidate;
  }
  throw Error(ErrorKind::kUsage, fmt::format("program '{}' is not found along PATH", name));
}

}  // namespace accel::launch
