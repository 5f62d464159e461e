#pragma once

#include <filesystem>

namespace accel::launch {

/// A rank's flight record is mapped memory, so its file lies in the launcher's scratch directory, on a disk
/// of this machine: a server that stalls would stall each step, and a file that it loses is SIGBUS. The
/// rank's log directory gets it when the rank has ended, and until then a link to it.

/// Makes that link, and notes in the scratch directory where the record is to go. What cannot be made is left
/// out: the record then ends with the scratch directory.
void link_flight_record(const std::filesystem::path& record, const std::filesystem::path& log_dir) noexcept;

/// Copies every record of a scratch directory to where it is to go, in place of the link.
void keep_flight_records(const std::filesystem::path& scratch) noexcept;

}  // namespace accel::launch
