#include "core/launch/cluster/run_secret.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/fd.hpp"
#include "base/files/file.hpp"
#include "base/files/no_sync.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "core/launch/cluster/authentication.hpp"

namespace accel::launch {
namespace {

namespace fs = std::filesystem;

/// Writes a file of mode 0600 under another name in the same directory, and returns the name.
fs::path write_private(const fs::path& file, const std::string& text) {
  std::string name = file.string() + ".XXXXXX";
  const Fd made(::mkostemp(name.data(), O_CLOEXEC));
  if (!made) throw system_error("create", name, errno);
  if (::write(made.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      (::fsync(made.get()) != 0 && !has_no_sync(errno))) {
    const int reason = errno;
    ::unlink(name.c_str());
    throw system_error("write", name, reason);
  }
  return name;
}

/// Gives `made` the name `file`, unless that is taken by now. NFS has no rename that replaces nothing, but
/// its server makes a link only where no other host has made one.
void name_if_free(const fs::path& made, const fs::path& file) {
  const LinkResult result = link_entry(made, file);
  if (result == LinkResult::kNotSupported && rename_to_free(made, file)) return;
  ::unlink(made.c_str());
}

}  // namespace

std::string run_secret_in(const Environment& environment) {
  constexpr std::size_t kLeast = 16;
  std::string secret = environment(kRunSecretVariable).value_or("");
  if (secret.empty() || secret.size() >= kLeast) return secret;
  throw Error(ErrorKind::kUsage, fmt::format("{} has {} characters, and {} at least are needed",
                                             kRunSecretVariable, secret.size(), kLeast))
      .hint("`openssl rand -hex 32` makes one");
}

std::string make_run_secret(const fs::path& file) {
  // Another launcher may make or remove the file meanwhile, and what is there counts.
  while (true) {
    check_interrupted();
    if (std::optional<std::string> found = read_run_secret(file)) return *std::move(found);
    name_if_free(write_private(file, new_nonce() + "\n"), file);
    sync_directory(file.parent_path());
  }
}

std::optional<std::string> read_run_secret(const fs::path& file) {
  if (!is_there(file)) return std::nullopt;
  std::string text = read_text_file(file);
  struct stat status {};
  constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
  if (::stat(file.c_str(), &status) == 0 && ((status.st_mode & kOthers) != 0 || status.st_uid != ::geteuid()))
    log::warn(
        fmt::format("'{}' is open to other users (mode {:04o}, owner {}): whoever knows the secret in it can "
                    "join the run",
                    file.string(), status.st_mode & 07777U, status.st_uid));
  if (text.ends_with('\n')) text.pop_back();
  if (is_nonce(text)) return text;
  throw Error(ErrorKind::kUsage, fmt::format("'{}' does not hold the secret of a run", file.string()))
      .hint("remove it, and the next run makes another one");
}

}  // namespace accel::launch
