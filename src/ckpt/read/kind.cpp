#include "ckpt/read/kind.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/directory.hpp"
#include "base/files/file.hpp"
#include "ckpt/dcp/metadata_files.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/read/rank_files.hpp"
#include "ckpt/safetensors/header.hpp"
#include "ckpt/store/accelerate_names.hpp"
#include "ckpt/store/rank_file_name.hpp"
#include "ckpt/store/weight_index.hpp"
#include "ckpt/torch/legacy.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

Kind kind_of_content(const fs::path& path) {
  const File file = File::open_read(path);
  const std::uint64_t bytes = file.size();
  const FileWindow window(file, 0, bytes);
  if (looks_like_zip(window)) {
    const ZipIndex zip(window);
    if (zip.find("archive_format") != nullptr) return Kind::kPt2;
    if (zip.find("data.pkl") == nullptr) return Kind::kUnknown;
    return zip.find("constants.pkl") != nullptr ? Kind::kTorchScript : Kind::kTorch;
  }
  if (path.extension() == ".safetensors") return Kind::kSafetensors;
  if (looks_like_legacy_torch(window)) return Kind::kTorch;
  if (bytes < 9) return Kind::kUnknown;
  const auto start = window.read(0, 9);
  const bool plausible = get_uint(start, 0, 8) <= kSafetensorsHeaderLimit && start[8] == std::byte{'{'};
  return plausible ? Kind::kSafetensors : Kind::kUnknown;
}

Kind kind_of_file(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.ends_with(".safetensors.index.json")) return Kind::kSafetensorsSharded;
  if (name.ends_with(".bin.index.json")) return Kind::kTorchSharded;
  if (name.starts_with("shard-") && name.ends_with(".safetensors")) return Kind::kDcpSafetensors;
  const std::optional<RankFileName> rank = parse_rank_file_name(name);
  if (rank && rank->is_accelerates()) return kind_of_set({parent_of(path), *rank, {{rank->rank, name}}});
  const Kind kind = kind_of_content(path);
  return kind == Kind::kTorch && rank && is_of_rank_set(path) ? Kind::kDtensor : kind;
}

bool is_shard(const std::string& name) {
  const std::optional<WeightShard> shard = parse_weight_shard(name);
  return shard && shard->count > 1;
}

// Whether the files can be one model or one optimizer. An optimizer's file is not part of a model beside it,
// so with one among them all must be shards of one set.
bool may_be_one_set(const std::vector<std::string>& names) {
  const auto is_optimizer = [](const std::string& name) { return name.starts_with(kOptimizerStem); };
  if (std::none_of(names.begin(), names.end(), is_optimizer)) return true;
  const std::optional<WeightShard> first = parse_weight_shard(names.front());
  return first && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
           const std::optional<WeightShard> shard = parse_weight_shard(name);
           return shard && shard->stem == first->stem;
         });
}

Kind kind_of_directory(const fs::path& path) {
  if (has_dcp_metadata(path)) return Kind::kDcp;
  if (!index_names_in(path, ".safetensors").empty()) return Kind::kSafetensorsSharded;
  if (!files_in(path, "shard-", ".safetensors").empty()) return Kind::kDcpSafetensors;
  const std::vector<std::string> safetensors = files_in(path, "", ".safetensors");
  // A single shard is a set whose other shards are lost.
  const bool several = (safetensors.size() > 1 && may_be_one_set(safetensors)) ||
                       (safetensors.size() == 1 && is_shard(safetensors.front()));
  if (several && !fs::exists(path / "model.safetensors")) return Kind::kSafetensorsSharded;
  if (safetensors.empty() && !index_names_in(path, ".bin").empty()) return Kind::kTorchSharded;
  return Kind::kDirectory;
}

}  // namespace

std::string_view name_of(Kind kind) {
  constexpr std::array<std::string_view, 12> kNames = {
      "dcp",   "dcp-safetensors", "safetensors", "safetensors-sharded",
      "torch", "torch-sharded",   "torchscript", "pt2",
      "local", "dtensor",         "directory",   "unknown"};
  static_assert(kNames.size() == static_cast<std::size_t>(Kind::kUnknown) + 1);
  return kNames.at(static_cast<std::size_t>(kind));
}

Kind kind_of(const fs::path& path) {
  if (!fs::exists(path)) throw Error(ErrorKind::kMissing, fmt::format("'{}' is not there", path.string()));
  if (fs::is_directory(path)) return kind_of_directory(path);
  return with_path(path, [&] { return kind_of_file(path); });
}

}  // namespace accel::ckpt
