#include "base/files/atomic_file.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"

namespace accel {

AtomicFile::AtomicFile(std::filesystem::path target, Existing existing, Parents parents)
    : target_(std::move(target)), existing_(existing) {
  if (existing_ == Existing::kRefuse && std::filesystem::exists(std::filesystem::symlink_status(target_))) {
    throw already_there(target_);
  }
  sweep_leftovers(target_);
  if (parents == Parents::kMake) parents_ = NewDirectories(parent_of(target_));
  do {  // Another process may sweep between the creation and the lock.
    temporary_ = leftover_name(target_, LeftoverKind::kFile);
    file_.emplace(File::create_new(temporary_));
    lock_.emplace(temporary_);
  } while (lock_->is_lost());
}

AtomicFile::~AtomicFile() {
  if (file_) remove_quietly(temporary_);
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  file_->write_at(end_, bytes);
  end_ += bytes.size();
}

void AtomicFile::append(std::string_view text) { append(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  file_->sync();
  check_interrupted();
  if (existing_ == Existing::kReplace) {
    rename_entry(temporary_, target_);
  } else if (!rename_to_free(temporary_, target_)) {
    throw already_there(target_);
  }
  File file = std::move(*file_);
  file_.reset();
  lock_.reset();
  parents_.keep();
  try {
    sync_directory(parent_of(target_));
    file.close();
  } catch (Error& error) {
    error.add_context(fmt::format("'{}' is complete, but may not survive a loss of power", target_.string()));
    throw;
  }
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path, AtomicFile::Existing::kReplace);
  file.append(text);
  file.commit();
}

}  // namespace accel
