#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ckpt/read/listed_checkpoint.hpp"

namespace accel::ckpt {

/// The files that each rank of a set wrote for itself.
struct RankFiles {
  std::filesystem::path directory;
  std::string stem;                  ///< "pytorch_model_fsdp_0".
  std::map<int, std::string> files;  ///< Names in the directory, by rank.
};

/// The set that `file` belongs to. Throws Error (kCorrupt) if a rank has two.
[[nodiscard]] RankFiles rank_files_of(const std::filesystem::path& file);

/// Throws Error (kMissing) that names the rank, one of `count`, unless its file is there.
void require_rank(const RankFiles& set, std::int64_t rank, std::int64_t count);

/// Tensors that are put together from what each rank has of them, in the order in which they come first.
class RankGatherer {
 public:
  /// The tensor of that path, new if no rank before had it. Append to its extents what the rank has. Throws
  /// Error (kCorrupt) if another rank says otherwise. The reference holds until the next call.
  ListedTensor& tensor(const StatePath& path, DType dtype, const Dims& shape);

  /// All of them; of pieces with the same box, all but the first are copies.
  [[nodiscard]] std::vector<ListedTensor> take() &&;

 private:
  std::vector<ListedTensor> tensors_;
  std::map<std::string, std::size_t> by_name_;
};

}  // namespace accel::ckpt
