#include "core/launch/agent/scratch.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/error.hpp"
#include "base/host/host_name.hpp"
#include "core/launch/agent/flight_home.hpp"

namespace accel::launch {
namespace {

namespace fs = std::filesystem;

/// Whether it is a directory of this user: all users may write to the folder, so the name alone is not proof.
bool is_own_directory(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid();
}

void sweep(const fs::path& folder, const std::string& prefix) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path& path = entry.path();
    if (!path.filename().string().starts_with(prefix) || !is_own_directory(path)) continue;
    const LeftoverLock lock(path);
    if (lock.state() != LeftoverLock::State::kHeld) continue;
    keep_flight_records(path);
    fs::remove_all(path, ignored);
  }
}

}  // namespace

fs::path temporary_folder(const Environment& environment) {
  const std::string named = environment("TMPDIR").value_or("");
  if (named.empty()) return "/tmp";
  std::error_code error;
  if (fs::is_directory(named, error)) return fs::absolute(named);
  throw Error(ErrorKind::kUsage, fmt::format("TMPDIR: '{}' is not a directory", named))
      .hint("create it, or unset TMPDIR");
}

Scratch::Scratch(const fs::path& folder) {
  const std::string prefix = fmt::format("accel-{}-{}-", host_name(), ::geteuid());
  sweep(folder, prefix);
  do {  // Another process may sweep between the creation and the lock.
    std::string name = (folder / (prefix + "XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) throw system_error("create", name, errno);
    path_ = name;
    // Whoever may read the log directory follows the link there to a flight record (agent/flight_home).
    ::chmod(path_.c_str(), 0711);
    lock_.emplace(path_);
  } while (lock_->is_lost());
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace accel::launch
