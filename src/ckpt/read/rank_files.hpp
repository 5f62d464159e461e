#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/store/rank_file_name.hpp"

namespace accel::ckpt {

/// A set of files, one of which each rank wrote for itself.
struct RankFiles {
  std::filesystem::path directory;
  RankFileName name;                 ///< The name of any of the files.
  std::map<int, std::string> files;  ///< Maps a rank to its file's name in the directory.
};

/// The set that `file` belongs to. Throws Error (kCorrupt) if a rank has two.
[[nodiscard]] RankFiles rank_files_of(const std::filesystem::path& file);

/// The kind of the set: kLocal or kDtensor.
[[nodiscard]] Kind kind_of_set(const RankFiles& set);

/// Whether the file is one of a set: Accelerate names it so, or it holds a DTensor, or the file of the first
/// or the last rank does. A file that cannot be read is not taken for one of a set.
[[nodiscard]] bool is_of_rank_set(const std::filesystem::path& file);

/// Takes the files that belong to a set out of `names`, files of `directory`, and returns the sets.
[[nodiscard]] std::vector<RankFiles> take_rank_sets(const std::filesystem::path& directory,
                                                    std::vector<std::string>& names);

/// Throws Error (kMissing) that names the rank, one of `count`, unless its file is there.
void require_rank(const RankFiles& set, std::int64_t rank, std::int64_t count);

/// Puts tensors together from the parts that each rank has, in the order in which each tensor comes first.
class RankGatherer {
 public:
  /// The tensor of that path, which is new if no rank before had it. The caller appends the rank's extents to
  /// it. The reference is valid until the next call. Throws Error (kCorrupt) if another rank gave the tensor
  /// another path, dtype or shape.
  ListedTensor& tensor(const StatePath& path, DType dtype, const Dims& shape);

  /// All tensors. Of several pieces with the same box, all but the first become copies.
  [[nodiscard]] std::vector<ListedTensor> take() &&;

 private:
  std::vector<ListedTensor> tensors_;
  std::map<std::string, std::size_t> by_name_;
};

}  // namespace accel::ckpt
