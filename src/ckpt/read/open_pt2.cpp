#include <memory>
#include <utility>

#include "base/checked.hpp"
#include "base/files/file.hpp"
#include "ckpt/pt2/archive.hpp"
#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/read/openers.hpp"

namespace accel::ckpt {

std::unique_ptr<Checkpoint> open_pt2(const std::filesystem::path& path) {
  const Pt2Archive archive(path);
  Listing listing{Kind::kPt2, path, parent_of(path), {}, {}, {}};
  for (const auto& [name, tensor] : archive.weights()) {
    ListedTensor listed{{name}, tensor.dtype, tensor.shape, {}};
    const bool has_values = archive.record_bytes(tensor) > 0;
    if (checked_numel(tensor.shape) > 0 && !has_values)
      listed.obstacle = "a tensor of the meta device, without values";
    if (has_values && checked_numel(tensor.shape) > 0) {
      const std::uint64_t skipped =
          static_cast<std::uint64_t>(tensor.storage_offset) * item_bytes(tensor.dtype);
      listed.extents.push_back({path.filename().string(), archive.record_offset(tensor) + skipped,
                                Box::whole(tensor.shape), tensor.strides});
    }
    listing.tensors.push_back(std::move(listed));
  }
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
