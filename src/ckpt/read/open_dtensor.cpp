#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/read/rank_files.hpp"
#include "ckpt/torch/dtensor.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/torch/sharded_tensor.hpp"
#include "ckpt/torch/state_walk.hpp"

namespace accel::ckpt {
namespace {

// Where the parts of a rank's local tensor lie in its file.
std::vector<Extent> extents_of(const std::string& file, const TorchFile& archive, const DTensor& tensor) {
  std::vector<Extent> extents;
  const std::vector<LocalPart> parts = parts_of(tensor);
  if (parts.empty()) return extents;
  const std::uint64_t first = archive.offset_of(tensor.local);
  for (const LocalPart& part : parts) {
    // The sum cannot overflow: it lies within the local tensor, whose bounds have been checked.
    std::int64_t elems = 0;
    for (std::size_t d = 0; d < part.local_offset.size(); ++d)
      elems += part.local_offset[d] * tensor.local.strides[d];
    const auto skipped = static_cast<std::uint64_t>(elems) * item_bytes(tensor.local.dtype);
    extents.push_back({file, first + skipped, part.box, tensor.local.strides});
  }
  return extents;
}

// FSDP1 saves one flat tensor for many parameters in its local state dicts, and does not record where each of
// them lies in it.
void refuse_flat(const StatePath& path) {
  const std::string name = fqn_of(path);
  if (name.find("flat_param") == std::string::npos) return;
  throw Error(ErrorKind::kFailure, "it is a flat parameter of FSDP1, which accel does not read")
      .hint("save the model as a full or a sharded state dict");
}

class DTensorReader {
 public:
  explicit DTensorReader(const RankFiles& set) : set_(set), files_(set.directory) {}

  void read(const std::string& name) {
    const File& file = files_.open(name);
    with_context("", file.path().string(), [&] {
      const TorchFile archive(FileWindow(file, 0, file.size()));
      StateVisitor visitor;
      visitor.tensor = [&](const StatePath& path, const TorchTensor& tensor, const pickle::Value& value) {
        with_context("tensor", fqn_of(path), [&] { add_tensor(name, archive, path, tensor, value); });
      };
      // The ranks have the same objects. One that a single rank has is kept, too.
      visitor.object = [&](const StatePath& path, const pickle::Value& value) {
        if (object_names_.insert(fqn_of(path)).second) objects_.push_back({path, value});
      };
      visitor.integer_keys = [&](const StatePath& path) { dicts_.insert(path); };
      walk_state(archive.read_pickle(), visitor);
    });
  }

  // Throws Error (kMissing) unless the file of every rank of every mesh was read.
  void check_ranks() const {
    const std::int64_t count = std::max(world_size_, static_cast<std::int64_t>(ranks_.size()));
    for (const std::int64_t rank : ranks_) require_rank(set_, rank, count);
    // This ends at the first rank without a file, whatever the number is.
    for (std::int64_t rank = 0; rank < world_size_; ++rank) require_rank(set_, rank, count);
  }

  void take(Listing& listing) && {
    listing.tensors = std::move(gatherer_).take();
    listing.objects = std::move(objects_);
    listing.dicts = std::move(dicts_);
  }

 private:
  void add_tensor(const std::string& file, const TorchFile& archive, const StatePath& path,
                  const TorchTensor& tensor, const pickle::Value& value) {
    if (const std::optional<DTensor> sharded = dtensor_of(value)) {
      ranks_.insert(sharded->ranks.begin(), sharded->ranks.end());
      ListedTensor& listed = gatherer_.tensor(path, sharded->local.dtype, sharded->shape);
      for (Extent& extent : extents_of(file, archive, *sharded)) listed.extents.push_back(std::move(extent));
      return;
    }
    if (const std::optional<ShardedTensor> sharded = sharded_tensor_of(value)) {
      refuse_flat(path);
      world_size_ = std::max(world_size_, sharded->ranks);
      ListedTensor& listed = gatherer_.tensor(path, tensor.dtype, sharded->shape);
      for (const auto& [box, local] : sharded->shards) {
        if (local.dtype != tensor.dtype)
          throw_corrupt(fmt::format("a shard is {}, and the tensor is {}", torch_name(local.dtype),
                                    torch_name(tensor.dtype)));
        if (!local.obstacle.empty()) listed.obstacle = local.obstacle;
        if (local.obstacle.empty() && box.numel() > 0)
          listed.extents.push_back({file, archive.offset_of(local), box, local.strides});
      }
      return;
    }
    ListedTensor& listed = gatherer_.tensor(path, tensor.dtype, tensor.shape);
    listed.obstacle = tensor.obstacle;
    if (!tensor.obstacle.empty() || checked_numel(tensor.shape) == 0) return;
    listed.extents.push_back({file, archive.offset_of(tensor), Box::whole(tensor.shape), tensor.strides});
  }

  const RankFiles& set_;
  FileCache files_;
  RankGatherer gatherer_;
  std::vector<ListedObject> objects_;
  std::set<std::string> object_names_;
  std::set<StatePath> dicts_;
  std::set<std::int64_t> ranks_;  // The ranks of all meshes.
  std::int64_t world_size_ = 0;   // The largest number of ranks that a ShardedTensor states.
};

}  // namespace

std::unique_ptr<Checkpoint> open_dtensor(const std::filesystem::path& file) {
  const RankFiles set = rank_files_of(file);
  Listing listing{Kind::kDtensor, file, set.directory, {}, {}, {}};
  DTensorReader reader(set);
  for (const auto& [rank, name] : set.files) reader.read(name);
  reader.check_ranks();
  std::move(reader).take(listing);
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
