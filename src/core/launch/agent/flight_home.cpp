#include "core/launch/agent/flight_home.hpp"

#include <exception>
#include <system_error>

namespace accel::launch {
namespace {

namespace fs = std::filesystem;

/// A link of this name beside a record shows where it is to go.
constexpr const char* kHome = ".home";

}  // namespace

void link_flight_record(const fs::path& record, const fs::path& log_dir) noexcept {
  try {
    std::error_code error;
    const fs::path home = log_dir / record.filename();
    fs::remove(home, error);
    fs::create_symlink(record, home, error);
    if (!error) fs::create_symlink(fs::absolute(home), fs::path(record).replace_extension(kHome), error);
  } catch (const std::exception&) {
    // There is no memory for the names.
  }
}

void keep_flight_records(const fs::path& scratch) noexcept {
  try {
    std::error_code error;
    for (fs::directory_iterator entry(scratch, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->path().extension() != kHome) continue;
      std::error_code failed;
      const fs::path home = fs::read_symlink(entry->path(), failed);
      const fs::path record = fs::path(entry->path()).replace_extension(".flight");
      // A later run may have taken its place.
      if (failed || fs::read_symlink(home, failed) != record || failed) continue;
      const fs::path copy = home.string() + ".copy";
      fs::copy_file(record, copy, fs::copy_options::overwrite_existing, failed);
      if (!failed) fs::rename(copy, home, failed);
      if (failed) fs::remove(copy, failed);
    }
  } catch (const std::exception&) {
    // There is no memory for the names.
  }
}

}  // namespace accel::launch
