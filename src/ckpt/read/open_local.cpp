#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "base/files/json_text.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/read/rank_files.hpp"
#include "ckpt/torch/dtensor.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/torch/state_walk.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr std::int64_t kVersion = 1;

const json& require(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) throw_corrupt(fmt::format("'{}' is missing", key));
  return *found;
}

std::int64_t require_int(const json& object, const char* key) {
  const json& value = require(object, key);
  const bool sound = value.is_number_unsigned() && std::in_range<std::int64_t>(value.get<std::uint64_t>());
  if (!sound) throw_corrupt(fmt::format("'{}' is {}", key, value.dump()));
  return value.get<std::int64_t>();
}

// The elements of a tensor that a rank has: a range of the flat tensor.
struct Share {
  DType dtype = DType::kFloat32;
  Dims shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct Description {
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
  std::map<std::string, Share> tensors;
};

Share share_of(const json& value) {
  Share share;
  const json& dtype = require(value, "dtype");
  const auto known = dtype.is_string() ? dtype_of_torch_name(dtype.get<std::string>()) : std::nullopt;
  if (!known) throw_corrupt(fmt::format("its dtype is {}", dtype.dump()));
  share.dtype = *known;
  const json& shape = require(value, "shape");
  if (!shape.is_array()) throw_corrupt(fmt::format("its shape is {}", shape.dump()));
  for (const json& dim : shape) {
    const bool sound = dim.is_number_unsigned() && std::in_range<std::int64_t>(dim.get<std::uint64_t>());
    if (!sound) throw_corrupt(fmt::format("its shape is {}", shape.dump()));
    share.shape.push_back(dim.get<std::int64_t>());
  }
  (void)checked_nbytes(share.shape, item_bytes(share.dtype));
  share.begin = require_int(value, "begin");
  share.end = require_int(value, "end");
  if (share.begin > share.end || share.end > checked_numel(share.shape))
    throw_corrupt(
        fmt::format("it says elements {} to {} of shape {}", share.begin, share.end, to_string(share.shape)));
  return share;
}

Description read_description(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::kMissing, fmt::format("'{}' is not there", path.string()))
        .hint("it says which elements the .bin beside it has");
  }
  return with_context("", path.string(), [&] {
    const json document = read_json_file(path);
    if (!document.is_object()) throw_corrupt("it is not a JSON object");
    const std::int64_t version = require_int(document, "version");
    if (version != kVersion)
      throw_corrupt(fmt::format("its version is {}, accel reads version {}", version, kVersion));
    Description description;
    description.rank = require_int(document, "rank");
    description.world_size = require_int(document, "world_size");
    if (description.rank >= description.world_size || description.world_size > kMostRanks)
      throw_corrupt(fmt::format("it says rank {} of {}", description.rank, description.world_size));
    const json& tensors = require(document, "tensors");
    if (!tensors.is_object()) throw_corrupt("'tensors' is not a JSON object");
    for (const auto& item : tensors.items()) {
      with_context("tensor", item.key(),
                   [&] { description.tensors.emplace(item.key(), share_of(item.value())); });
    }
    return description;
  });
}

// Adds the share, whose elements lie one after another in the file, as boxes of the whole tensor.
void add_pieces(ListedTensor& tensor, const Share& share, const std::string& file, std::uint64_t offset,
                std::int64_t stride) {
  const std::uint64_t item = item_bytes(share.dtype);
  for (Box& box : boxes_of_range(share.shape, share.begin, share.end)) {
    const std::int64_t before = flat_index(share.shape, box.offsets) - share.begin;
    Dims strides = row_major_strides(box.sizes);
    for (std::int64_t& step : strides) step = checked_mul(step, stride);
    const std::uint64_t at = offset + static_cast<std::uint64_t>(before * stride) * item;
    tensor.extents.push_back({file, at, std::move(box), std::move(strides)});
  }
}

class LocalReader {
 public:
  explicit LocalReader(const std::filesystem::path& directory) : files_(directory) {}

  void read(const std::string& name, const Description& description) {
    const File& file = files_.open(name);
    with_context("", file.path().string(), [&] {
      const TorchFile archive(FileWindow(file, 0, file.size()));
      std::size_t found = 0;
      StateVisitor visitor;
      visitor.tensor = [&](const StatePath& path, const TorchTensor& tensor, const pickle::Value&) {
        with_context("tensor", fqn_of(path), [&] { add_tensor(name, archive, path, tensor, description); });
        ++found;
      };
      visitor.object = [&](const StatePath& path, const pickle::Value&) {
        throw_corrupt(fmt::format("'{}' is not a tensor", fqn_of(path)));
      };
      walk_state(archive.read_pickle(), visitor);
      if (found != description.tensors.size()) {
        throw_corrupt(fmt::format("it has {} tensors, the .json beside it lists {}", found,
                                  description.tensors.size()));
      }
    });
  }

  std::vector<ListedTensor> take() && {
    check_ranges();
    return std::move(gatherer_).take();
  }

 private:
  void add_tensor(const std::string& file, const TorchFile& archive, const StatePath& path,
                  const TorchTensor& tensor, const Description& description) {
    const std::string name = fqn_of(path);
    const auto share = description.tensors.find(name);
    if (share == description.tensors.end() || path.size() != 1)
      throw_corrupt("the .json beside it does not list it");
    const Share& stated = share->second;
    if (tensor.dtype != stated.dtype || tensor.shape != Dims{stated.end - stated.begin}) {
      throw_corrupt(fmt::format("it is {} {}, the .json beside it says {} elements of {}",
                                torch_name(tensor.dtype), to_string(tensor.shape), stated.end - stated.begin,
                                torch_name(stated.dtype)));
    }
    ListedTensor& listed = gatherer_.tensor(path, stated.dtype, stated.shape);
    ranges_[name].emplace_back(stated.begin, stated.end);
    if (stated.begin < stated.end)
      add_pieces(listed, stated, file, archive.offset_of(tensor), tensor.strides.at(0));
  }

  // Throws Error (kCorrupt) if the ranges of two ranks overlap without being the same.
  void check_ranges() {
    for (auto& [name, ranges] : ranges_) {
      std::sort(ranges.begin(), ranges.end());
      ranges.erase(std::unique(ranges.begin(), ranges.end()), ranges.end());
      std::erase_if(ranges, [](const auto& range) { return range.first == range.second; });
      for (std::size_t i = 1; i < ranges.size(); ++i) {
        if (ranges[i].first < ranges[i - 1].second) {
          throw_corrupt(fmt::format("tensor '{}': elements {} to {} and {} to {} of two ranks overlap", name,
                                    ranges[i - 1].first, ranges[i - 1].second, ranges[i].first,
                                    ranges[i].second));
        }
      }
    }
  }

  FileCache files_;
  RankGatherer gatherer_;
  std::map<std::string, std::vector<std::pair<std::int64_t, std::int64_t>>> ranges_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_local(const std::filesystem::path& file) {
  const RankFiles set = rank_files_of(file);
  Listing listing{Kind::kLocal, file, set.directory, {}, {}, {}};
  LocalReader reader(set.directory);
  std::int64_t world_size = 0;
  for (const auto& [rank, name] : set.files) {
    const std::filesystem::path json_path = (set.directory / name).replace_extension(".json");
    const Description description = read_description(json_path);
    if (world_size == 0) world_size = description.world_size;
    if (description.rank != rank || description.world_size != world_size) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("'{}' says rank {} of {}, but rank {} of {} is expected", json_path.string(),
                              description.rank, description.world_size, rank, world_size))
          .hint("files of different saves may be mixed");
    }
    reader.read(name, description);
  }
  for (std::int64_t rank = 0; rank < world_size; ++rank) require_rank(set, rank, world_size);
  listing.tensors = std::move(reader).take();
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
