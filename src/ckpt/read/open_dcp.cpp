#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "ckpt/dcp_read.hpp"
#include "ckpt/read/openers.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {
namespace {

class DcpCheckpoint final : public Checkpoint {
 public:
  explicit DcpCheckpoint(const std::filesystem::path& directory) : reader_(directory) {
    contents_.kind = Kind::kDcp;
    contents_.path = directory;
    contents_.directory = directory;
    const DcpMetadata& metadata = reader_.metadata();
    for (const DcpTensor& tensor : metadata.tensors) tensors_.push_back(&tensor);
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const DcpTensor* a, const DcpTensor* b) { return a->position < b->position; });
    contents_.tensors.reserve(tensors_.size());
    for (const DcpTensor* tensor : tensors_) {
      const auto pieces = std::count_if(tensor->chunks.begin(), tensor->chunks.end(),
                                        [](const DcpChunk& chunk) { return chunk.box.numel() != 0; });
      contents_.tensors.push_back({tensor->fqn, tensor->path, tensor->dtype, tensor->shape,
                                   static_cast<std::size_t>(pieces), tensor->copies.size()});
    }
    for (const DcpObject& object : metadata.objects) contents_.objects.push_back({object.fqn, object.path});
  }

  // From the metadata alone: opening every chunk's archive costs more than all the rest of a plan.
  void check_coverage(std::size_t tensor) override {
    const DcpTensor& entry = *tensors_.at(tensor);
    try {
      check_tiling(entry.chunks.boxes(), entry.shape);
    } catch (Error& e) {
      e.add_context(fmt::format("tensor '{}' of shape {}", entry.fqn, to_string(entry.shape)));
      throw;
    }
  }

  pickle::Value read_object(std::size_t object) override {
    return reader_.read_object(reader_.metadata().objects.at(object));
  }

 private:
  StoredTensor locate_in(std::size_t tensor, FileCache& files) const override {
    return reader_.locate(*tensors_.at(tensor), files);
  }

  DcpReader reader_;
  std::vector<const DcpTensor*> tensors_;  // In the order of contents_.tensors.
};

}  // namespace

std::unique_ptr<Checkpoint> open_dcp(const std::filesystem::path& directory) {
  return std::make_unique<DcpCheckpoint>(directory);
}

}  // namespace accel::ckpt
