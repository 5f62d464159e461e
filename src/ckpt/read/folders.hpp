#pragma once

#include <filesystem>
#include <vector>

namespace accel::ckpt {

/// How many levels below a directory are searched for checkpoints.
inline constexpr int kSearchDepth = 3;

/// A directory below one that is searched, and what its name says of it.
struct Folder {
  enum class State {
    kOpen,        ///< It may hold checkpoints.
    kUnfinished,  ///< A save that has not finished: `X.incomplete`, `pytorch_model_fsdp_0.incomplete-TOKEN`.
    kLeftOver,    ///< A removal or a writer was interrupted: `X.deleting`, `X.incomplete-TOKEN`.
  };

  std::filesystem::path path;
  State state = State::kOpen;
  bool hidden = false;  ///< Its name begins with a dot.
};

/// The directories in `directory`, links to directories included, sorted. A search enters only those that are
/// kOpen. Throws Error if `directory` cannot be listed.
[[nodiscard]] std::vector<Folder> folders_in(const std::filesystem::path& directory);

/// Whether `directory` has an entry that is called as a data file of DCP: `*.distcp`.
[[nodiscard]] bool has_data_files(const std::filesystem::path& directory);

}  // namespace accel::ckpt
