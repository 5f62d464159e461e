#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/error_context.hpp"
#include "base/files/file.hpp"
#include "ckpt/read/listed_checkpoint.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/read/torch_listing.hpp"

namespace accel::ckpt {

namespace {

// Whether a pickled torch.Size has no elements.
bool is_empty_size(const pickle::Value& value) {
  const pickle::ObjectParts* size = pickle::object_of(value, "torch", "Size");
  const auto* sizes =
      size == nullptr || size->args.empty() ? nullptr : pickle::sequence_of(size->args.front());
  return sizes == nullptr || std::any_of(sizes->begin(), sizes->end(), [](const pickle::Value& one) {
           return pickle::same(one, pickle::Value(0));
         });
}

// Marks the tensors of DeepSpeed's ZeRO that are parts: those in the file of a rank's optimizer, and the
// parameters of ZeRO 3, which are empty in the file of the model.
void mark_parts_of_zero(Listing& listing) {
  std::set<PathKey> parameters;
  bool is_partition = false;
  for (const ListedObject& object : listing.objects) {
    const StatePath& path = object.path;
    if (path == StatePath{"optimizer_state_dict", "zero_stage"}) is_partition = true;
    const bool is_shape =
        path.front() == PathKey("param_shapes") || path.front() == PathKey("frozen_param_shapes");
    if (is_shape && !is_empty_size(object.value)) parameters.insert(path.back());
  }
  for (ListedTensor& tensor : listing.tensors) {
    const StatePath& path = tensor.path;
    if (is_partition) {
      tensor.obstacle = "in a file of one rank of DeepSpeed's ZeRO (zero_to_fp32.py puts them together)";
    } else if (path.size() == 2 && path[0] == PathKey("module") && parameters.contains(path[1]) &&
               checked_numel(tensor.shape) == 0) {
      tensor.obstacle =
          "empty here, since DeepSpeed's ZeRO 3 has its elements in the files of the ranks "
          "(zero_to_fp32.py puts them together)";
    }
  }
}

}  // namespace

std::unique_ptr<Checkpoint> open_torch(const std::filesystem::path& path) {
  Listing listing{Kind::kTorch, path, parent_of(path), {}, {}, {}};
  const File file = File::open_read(path);
  with_context("", path.string(), [&] {
    add_torch_file(listing, path.filename().string(), TorchFile(FileWindow(file, 0, file.size())));
  });
  mark_parts_of_zero(listing);
  return std::make_unique<ListedCheckpoint>(std::move(listing));
}

}  // namespace accel::ckpt
