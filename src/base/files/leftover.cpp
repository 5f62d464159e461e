#include "base/files/leftover.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <re2/re2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "base/host/host_name.hpp"
#include "base/log.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIncomplete = ".incomplete-";
constexpr std::string_view kDeleting = ".deleting-";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::size_t kMostNameBytes = 180;  // Most file systems allow 255; the rest is for the token.
constexpr std::chrono::hours kForeignAge{24};

std::uint32_t fnv1a(std::string_view text) {
  std::uint32_t hash = 2166136261;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return hash;
}

const std::string& host() {
  static const std::string hash = fmt::format("{:08x}", fnv1a(host_name()));
  return hash;
}

std::string shortened(std::string_view name) {
  if (name.size() <= kMostNameBytes) return std::string(name);
  return fmt::format("{}~{:08x}", name.substr(0, kMostNameBytes - 9), fnv1a(name));
}

std::string prefix_of(std::string_view target_name, LeftoverKind kind) {
  switch (kind) {
    case LeftoverKind::kFile:
      return fmt::format(".{}{}", shortened(target_name), kTemporary);
    case LeftoverKind::kBeside:
      return fmt::format("{}{}", shortened(target_name), kIncomplete);
    case LeftoverKind::kInside:
      return std::string(kIncomplete);
    case LeftoverKind::kDeleting:
      break;
  }
  return fmt::format("{}{}", shortened(target_name), kDeleting);
}

bool is_token(std::string_view text) {
  static const re2::RE2 kToken("[0-9a-f]{8}-[0-9]+-[0-9]+");
  return re2::RE2::FullMatch(re2::StringPiece(text.data(), text.size()), kToken);
}

// The time of the newest change at or below `path`.
fs::file_time_type newest_change(const fs::path& path) {
  std::error_code ignored;
  fs::file_time_type newest = fs::last_write_time(path, ignored);
  if (!fs::is_directory(fs::symlink_status(path))) return newest;
  for (const std::string& name : names_in(path)) newest = std::max(newest, newest_change(path / name));
  return newest;
}

bool is_abandoned(const fs::path& path, const LeftoverLock& lock, std::string_view token) {
  if (lock.is_lost()) return false;
  if (lock.state() == LeftoverLock::State::kHeld && token.starts_with(host())) return true;
  return fs::file_time_type::clock::now() - newest_change(path) > kForeignAge;
}

class Sweeper {
 public:
  explicit Sweeper(const fs::path& target) : target_(target), parent_(parent_of(target)) {}

  void sweep() {
    const std::string name = target_.filename().string();
    // kDeleting comes first, because finish_exchange() looks for its partner of kind kBeside.
    for (const LeftoverKind kind :
         {LeftoverKind::kDeleting, LeftoverKind::kBeside, LeftoverKind::kFile, LeftoverKind::kInside}) {
      const fs::path& directory = kind == LeftoverKind::kInside ? target_ : parent_;
      for_each_abandoned(directory, prefix_of(name, kind), [&](const fs::path& path, std::string_view token) {
        if (kind == LeftoverKind::kInside) undo_links(path, target_, true);
        if (kind == LeftoverKind::kDeleting && !finish_exchange(path, token)) return;
        sync_directory(directory);  // The commit that replaced it must be durable first.
        remove_tree(path);
      });
    }
  }

 private:
  // An exchange by two renames may have stopped between them. Then the old directory gets its name back, and
  // the result is false: `deleting` does not exist any more.
  bool finish_exchange(const fs::path& deleting, std::string_view token) {
    const fs::path partner =
        parent_ / (prefix_of(target_.filename().string(), LeftoverKind::kBeside) + std::string(token));
    if (!is_there(partner)) return true;
    const LeftoverLock lock(partner);
    if (!is_abandoned(partner, lock, token)) return false;
    if (!rename_to_free(deleting, target_)) return true;
    sync_directory(parent_);
    return false;
  }

  template <class Handle>
  static void for_each_abandoned(const fs::path& directory, const std::string& prefix, const Handle& handle) {
    if (!fs::is_directory(directory)) return;
    for (const std::string& name : names_in(directory)) {
      if (!name.starts_with(prefix)) continue;
      const std::string_view token = std::string_view(name).substr(prefix.size());
      if (!is_token(token)) continue;
      try {
        const LeftoverLock lock(directory / name);
        if (is_abandoned(directory / name, lock, token)) handle(directory / name, token);
      } catch (const Error& error) {
        log::warn(fmt::format("'{}' was left by an interrupted command and cannot be removed: {}",
                              (directory / name).string(), error.message()));
      }
    }
  }

  fs::path target_;
  fs::path parent_;
};

}  // namespace

LeftoverLock::LeftoverLock(const fs::path& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)) {
  if (!fd_) {
    state_ = errno == ENOENT ? State::kGone : State::kNotSupported;
  } else if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    state_ = errno == EWOULDBLOCK ? State::kTaken : State::kNotSupported;
  } else {
    // The previous owner may have removed the file.
    struct stat status {};
    state_ = ::fstat(fd_.get(), &status) == 0 && status.st_nlink == 0 ? State::kGone : State::kHeld;
  }
}

fs::path leftover_name(const fs::path& target, LeftoverKind kind) {
  static std::atomic<unsigned> counter{0};
  const fs::path directory = kind == LeftoverKind::kInside ? target : parent_of(target);
  const std::string prefix = prefix_of(target.filename().string(), kind);
  while (true) {
    fs::path path = directory / fmt::format("{}{}-{}-{}", prefix, host(), ::getpid(), counter++);
    if (!is_there(path)) return path;
  }
}

fs::path deleting_name(const fs::path& beside) {
  std::string name = beside.filename().string();
  name.replace(name.rfind(kIncomplete), kIncomplete.size(), kDeleting);
  return parent_of(beside) / name;
}

bool is_leftover_name(std::string_view name, std::string_view target_name, LeftoverKind kind) {
  const std::string prefix = prefix_of(target_name, kind);
  return name.starts_with(prefix) && is_token(name.substr(prefix.size()));
}

bool is_leftover_name(std::string_view name) {
  for (const std::string_view marker : {kIncomplete, kDeleting, kTemporary}) {
    const std::size_t at = name.rfind(marker);
    if (at != std::string_view::npos && is_token(name.substr(at + marker.size()))) return true;
  }
  return false;
}

void sweep_leftovers(const fs::path& target) {
  // The temporary names of a directory are made from its own name, not from that of a link to it.
  std::error_code error;
  const fs::path real = fs::is_directory(target) ? fs::canonical(target, error) : target;
  if (!error) Sweeper(real.has_filename() ? real : real.parent_path()).sweep();
}

void undo_links(const fs::path& staging, const fs::path& target, bool if_incomplete) {
  std::vector<fs::path> linked;
  std::size_t files = 0;
  for (const std::string& name : names_in(staging)) {
    if (!fs::is_regular_file(fs::symlink_status(staging / name))) continue;
    ++files;
    std::error_code ignored;
    if (is_there(target / name) && fs::equivalent(staging / name, target / name, ignored))
      linked.push_back(target / name);
  }
  if (linked.empty() || (if_incomplete && linked.size() == files)) return;
  for (const fs::path& path : linked) remove_file(path);
  sync_directory(target);
}

}  // namespace accel
