#include "base/atomic_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "base/error.hpp"

namespace accel {
namespace {

// Process and counter make the name unique here, the host name's hash is not needed: O_EXCL finds a
// collision.
std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<unsigned> counter{0};
  return parent_of(target) / fmt::format(".{}.{}-{}.tmp", target.filename().string(), ::getpid(), counter++);
}

Error already_there(const std::filesystem::path& target) {
  return Error(ErrorKind::kFailure, fmt::format("'{}' is already there", target.string()))
      .hint("choose another output, or pass --force to replace it");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target, Existing existing)
    : target_(std::move(target)), temporary_(temporary_name(target_)), existing_(existing) {
  if (existing_ == Existing::kRefuse && std::filesystem::exists(std::filesystem::symlink_status(target_))) {
    throw already_there(target_);
  }
  file_.emplace(File::create_new(temporary_));
}

AtomicFile::~AtomicFile() {
  if (!file_) return;
  ::unlink(temporary_.c_str());
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  file_->write_at(end_, bytes);
  end_ += bytes.size();
}

void AtomicFile::append(std::string_view text) { append(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  file_->sync();
  if (existing_ == Existing::kReplace) {
    rename_durably(temporary_, target_);
  } else {
    // link(2) fails if the name is taken, which rename(2) would silently replace.
    if (::link(temporary_.c_str(), target_.c_str()) != 0) {
      if (errno == EEXIST) throw already_there(target_);
      // No hard links on this file system: check, then rename.
      if (std::filesystem::exists(std::filesystem::symlink_status(target_))) throw already_there(target_);
      rename_durably(temporary_, target_);
    } else {
      ::unlink(temporary_.c_str());
      sync_directory(parent_of(target_));
    }
  }
  file_->close();
  file_.reset();
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path, AtomicFile::Existing::kReplace);
  file.append(text);
  file.commit();
}

}  // namespace accel
