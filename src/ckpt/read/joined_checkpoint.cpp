#include "ckpt/read/joined_checkpoint.hpp"

#include <filesystem>
#include <utility>
#include <vector>

#include "base/interrupt.hpp"
#include "ckpt/read/listed_checkpoint.hpp"

namespace accel::ckpt {
namespace {

namespace fs = std::filesystem;

/// The deepest directory that both paths, which are canonical, lie in.
fs::path common_directory(const fs::path& one, const fs::path& other) {
  fs::path common;
  auto a = one.begin();
  for (auto b = other.begin(); a != one.end() && b != other.end() && *a == *b; ++a, ++b) common /= *a;
  return common;
}

void add_tensors(Listing& listing, Checkpoint& from) {
  const fs::path below = fs::canonical(from.directory()).lexically_relative(listing.directory);
  // The name is not made normal, so that FileCache still refuses one that leads out of its checkpoint.
  const auto moved = [&](std::vector<Extent> extents) {
    if (below == ".") return extents;
    for (Extent& extent : extents) extent.file = (below / extent.file).string();
    return extents;
  };
  for (std::size_t i = 0; i < from.tensors().size(); ++i) {
    check_interrupted();
    const TensorEntry& entry = from.tensors()[i];
    StoredTensor stored = from.locate(i);
    listing.tensors.push_back({entry.path, entry.dtype, entry.shape, moved(std::move(stored.extents)),
                               moved(std::move(stored.copies))});
  }
}

}  // namespace

std::unique_ptr<Checkpoint> join(Checkpoint& first, Checkpoint& second) {
  Listing listing{first.kind(), first.path(), {}, {}, {}, first.metadata()};
  listing.directory = common_directory(fs::canonical(first.directory()), fs::canonical(second.directory()));
  add_tensors(listing, first);
  add_tensors(listing, second);
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
