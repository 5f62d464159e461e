#include "weights/checkpoint_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "ckpt/read/layout_parts.hpp"
#include "ckpt/read/layouts.hpp"
#include "ckpt/tensor/convert_dtype.hpp"
#include "ckpt/tensor/state_path.hpp"

namespace accel {
namespace {

/// Bytes that are converted at once.
constexpr std::size_t kConvertedBytes = std::size_t{4} << 20;

ckpt::Layout layout_for(const ckpt::Checkpoint& checkpoint, CheckpointTensors::Part part) {
  if (part == CheckpointTensors::Part::kWeights) return ckpt::chosen_layout(checkpoint);
  if (std::optional<ckpt::Layout> layout = ckpt::optimizer_layout(checkpoint)) return std::move(*layout);
  throw Error(ErrorKind::kMissing,
              fmt::format("'{}' has no state of an optimizer", checkpoint.path().string()))
      .hint("for weights alone there is training.model.weights");
}

}  // namespace

bool can_read_as(ckpt::DType from, ckpt::DType to) { return from == to || ckpt::can_convert(from, to); }

CheckpointTensors::CheckpointTensors(const std::filesystem::path& path, Part part)
    : CheckpointTensors(ckpt::open_checkpoint(path), part) {}

CheckpointTensors::CheckpointTensors(std::unique_ptr<ckpt::Checkpoint> checkpoint, Part part)
    : checkpoint_(std::move(checkpoint)), reader_(checkpoint_->directory()) {
  const ckpt::Layout layout = layout_for(*checkpoint_, part);
  const auto parts = ckpt::left_out_parts(*checkpoint_, layout, ckpt::Objects::kTaken);
  const bool is_more =
      std::any_of(parts.begin(), parts.end(), [](const auto& one) { return one.tensors > 0; });
  if (is_more) left_out_ = ckpt::to_string(parts);
  for (std::size_t i = 0; i < checkpoint_->tensors().size(); ++i) {
    const ckpt::TensorEntry& entry = checkpoint_->tensors()[i];
    if (const auto relative = layout.below(entry.path))
      tensors_.emplace(ckpt::fqn_of(*relative), Tensor{i, entry.shape, entry.dtype});
  }
}

const CheckpointTensors::Tensor* CheckpointTensors::find(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return nullptr;
  found->second.used = true;
  return &found->second;
}

std::vector<std::string> CheckpointTensors::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (!tensor.used) names.push_back(name);
  }
  return names;
}

void CheckpointTensors::read(const Tensor& tensor, ckpt::DType dtype, std::int64_t begin,
                             std::span<std::byte> out) {
  if (located_ != tensor.source) {
    checkpoint_->check_coverage(tensor.source);
    stored_ = checkpoint_->locate(tensor.source);
    located_ = tensor.source;
  }
  const std::size_t item = ckpt::item_bytes(dtype);
  const auto end = begin + static_cast<std::int64_t>(out.size() / item);
  if (tensor.dtype == dtype) return reader_.read_range(stored_, begin, end, out);
  const std::size_t from = ckpt::item_bytes(tensor.dtype);
  const auto block = static_cast<std::int64_t>(kConvertedBytes / from);
  std::vector<std::byte> raw;
  for (std::int64_t at = begin; at < end; at += block) {
    const std::int64_t until = std::min(end, at + block);
    raw.resize(static_cast<std::size_t>(until - at) * from);
    reader_.read_range(stored_, at, until, raw);
    ckpt::convert_dtype(tensor.dtype, raw, dtype,
                        out.subspan(static_cast<std::size_t>(at - begin) * item,
                                    static_cast<std::size_t>(until - at) * item));
  }
}

}  // namespace accel
