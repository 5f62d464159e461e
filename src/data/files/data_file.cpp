#include "data/files/data_file.hpp"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/host/descriptors.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

constexpr std::int64_t kNsPerSecond = 1'000'000'000;

std::string time_text(std::int64_t ns) {
  return fmt::format("{}.{:03}", format_time(ns / kNsPerSecond), ns % kNsPerSecond / 1'000'000);
}

/// So many descriptors are left for everything else: sockets, libraries, checkpoints.
constexpr std::size_t kOtherDescriptors = 512;

}  // namespace

DataFile::DataFile(const std::string& path)
    : path_(path), file_(File::open_read(path)), state_(now()), accepted_(state_) {}

void DataFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  try {
    file_.read_at(offset, out);
  } catch (const Error&) {
    const auto change = this->change();
    if (!change || now().bytes >= offset + out.size()) throw;
    throw changed_error(*this, *change);
  }
}

std::optional<std::string> DataFile::change() const {
  const State found = now();
  if (found.bytes != accepted_.bytes)
    return fmt::format("it had {} bytes and has {}", accepted_.bytes, found.bytes);
  if (found.changed_ns == accepted_.changed_ns) return std::nullopt;
  return fmt::format("it was written at {}, and is of {}", time_text(accepted_.changed_ns),
                     time_text(found.changed_ns));
}

void DataFile::accept_change() const { accepted_ = now(); }

DataFile::State DataFile::now() const {
  struct stat status {};
  if (::fstat(file_.fd(), &status) != 0) throw system_error("stat", path_, errno);
  return {static_cast<std::uint64_t>(status.st_size),
          std::int64_t{status.st_mtim.tv_sec} * kNsPerSecond + status.st_mtim.tv_nsec};
}

std::vector<std::string> data_files(const std::string& pattern) {
  std::vector<std::string> paths;
  std::error_code unknown;
  if (std::filesystem::exists(pattern, unknown)) {
    paths.push_back(pattern);  // `train[1].npy` is a name, too.
  } else {
    glob_t found{};
    const int result = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
    paths.assign(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
    ::globfree(&found);
  }
  if (paths.empty()) throw Error(ErrorKind::kUsage, fmt::format("no file matches '{}'", pattern));
  allow_data_files(paths.size());
  return paths;
}

void allow_data_files(std::size_t files) {
  // If there are too few descriptors, the file that cannot be opened is an Error.
  allow_descriptors(files + kOtherDescriptors);
}

Error changed_error(const DataFile& file, const std::string& change) {
  return Error(ErrorKind::kUsage,
               fmt::format("data file '{}' has changed while the run reads it: {}", file.path(), change))
      .hint(
          "a run needs its data as they were when it began; write new data under another name, and let the "
          "run go on from its last checkpoint with the old ones");
}

}  // namespace accel
