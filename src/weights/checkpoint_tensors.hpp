#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/tensor/tensor_reader.hpp"

namespace accel {

/// The tensors of one checkpoint by name, without the root of the state dict. Any range of one is read in
/// any dtype that its own converts to, so that no rank needs a whole tensor.
class CheckpointTensors {
 public:
  struct Tensor {
    std::size_t source = 0;  ///< Index into the checkpoint's tensors.
    ckpt::Dims shape;
    ckpt::DType dtype = ckpt::DType::kFloat32;
    bool used = false;  ///< Whether find() has returned it.
  };

  /// Which tensors are taken: the weights, or the state of the optimizer (ckpt::Layout).
  enum class Part { kWeights, kOptimizer };

  /// `path` is what ckpt::find_checkpoint returned, or a checkpoint itself. Throws what
  /// ckpt::open_checkpoint() and ckpt::chosen_layout() throw, and Error (kMissing) if there is no optimizer.
  explicit CheckpointTensors(const std::filesystem::path& path, Part part = Part::kWeights);
  /// The tensors of a checkpoint that is open already.
  explicit CheckpointTensors(std::unique_ptr<ckpt::Checkpoint> checkpoint, Part part = Part::kWeights);

  [[nodiscard]] const std::filesystem::path& path() const { return checkpoint_->path(); }
  /// Makes read() note in `sums` what it reads, as TensorReader::note_in() does.
  void note_in(ckpt::ReadSums* sums) { reader_.note_in(sums); }
  /// The tensor `name`, which counts as used from here on; null if there is none.
  [[nodiscard]] const Tensor* find(const std::string& name);
  /// The names of the tensors that are not used, sorted.
  [[nodiscard]] std::vector<std::string> unused() const;
  /// What the layout leaves out, as ckpt::to_string() puts it; empty if that has no tensors.
  [[nodiscard]] const std::string& left_out() const { return left_out_; }

  /// Fills `out` with elements [begin, begin + out.size() / itemsize) of `tensor`, row-major, in `dtype`.
  void read(const Tensor& tensor, ckpt::DType dtype, std::int64_t begin, std::span<std::byte> out);

 private:
  std::unique_ptr<ckpt::Checkpoint> checkpoint_;
  ckpt::TensorReader reader_;
  std::map<std::string, Tensor> tensors_;
  std::string left_out_;
  std::optional<std::size_t> located_;
  ckpt::StoredTensor stored_;  ///< Where the tensor located_ is stored.
};

/// Whether a tensor of dtype `from` can be read as `to`.
[[nodiscard]] bool can_read_as(ckpt::DType from, ckpt::DType to);

}  // namespace accel
