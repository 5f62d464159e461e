#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/read/torch_listing.hpp"

namespace accel::ckpt {

std::unique_ptr<Checkpoint> open_torch(const std::filesystem::path& path) {
  Listing listing{Kind::kTorch, path, parent_of(path), {}, {}, {}};
  const File file = File::open_read(path);
  with_context("", path.string(), [&] {
    add_torch_file(listing, path.filename().string(), TorchFile(FileWindow(file, 0, file.size())));
  });
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
