#pragma once

#include <string>
#include <vector>

namespace accel {

/// Whether the first match of a path or a glob is a directory, which may be one that save_to_disk of the
/// package datasets wrote, or a file that begins like one of Arrow's IPC format.
[[nodiscard]] bool is_arrow(const std::string& pattern);

/// The Arrow files that a path or a glob of training data means. For a directory of save_to_disk these are
/// the files that its state.json names, in that order. Throws Error (kUsage) if nothing matches, or for a
/// directory that is not one of save_to_disk, has several splits, or selects its rows by indices.
[[nodiscard]] std::vector<std::string> arrow_files(const std::string& pattern);

/// Whether the path or glob is of a directory of save_to_disk, whatever it holds.
[[nodiscard]] bool is_saved_dataset(const std::string& pattern);

}  // namespace accel
