#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "ckpt/read/search.hpp"
#include "ckpt/tensor/tensor_reader.hpp"
#include "train/model/weight_source.hpp"

namespace accel::train {

/// Values from a checkpoint of any kind, by name. A tied parameter is found under any of its names. Tensors
/// of another dtype are converted. Tensors that the model does not have are ignored with one warning.
class CheckpointWeights final : public WeightSource {
 public:
  /// Throws Error (kUsage) that lists tensors that are missing, with the nearest name in the checkpoint, and
  /// tensors of another shape or of a dtype that cannot be converted.
  CheckpointWeights(const ModelStructure& structure, const std::filesystem::path& path);

  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) override;
  bool read_buffer(const std::string& name, const std::vector<std::int64_t>& shape, ckpt::DType dtype,
                   std::span<std::byte> out) override;

  /// Lists other checkpoints beside the one that was read, tensors that the model does not have, and buffers
  /// that are not in the checkpoint.
  [[nodiscard]] std::vector<std::string> warnings() const override;

 private:
  struct Tensor {
    std::size_t source = 0;  ///< Index into the checkpoint's tensors.
    ckpt::Dims shape;
    ckpt::DType dtype = ckpt::DType::kFloat32;
    bool used = false;
  };
  struct Wanted {
    const Tensor* tensor = nullptr;
    ckpt::DType dtype = ckpt::DType::kFloat32;
    std::string name;  ///< The name of the tensor.
    /// Tensors under the parameter's other names, which must have the same values.
    std::vector<std::pair<std::string, const Tensor*>> tied;
  };

  [[nodiscard]] std::vector<std::string> unused() const;
  void read(const Tensor& tensor, ckpt::DType dtype, std::int64_t begin, std::span<std::byte> out);

  ckpt::FoundCheckpoint found_;
  std::unique_ptr<ckpt::Checkpoint> checkpoint_;
  ckpt::TensorReader reader_;
  std::map<std::string, Tensor> tensors_;
  std::vector<Wanted> parameters_;  ///< One entry per parameter, in the order of the structure.
  std::vector<std::string> missing_buffers_;
  std::optional<std::size_t> located_;
  ckpt::StoredTensor stored_;  ///< Where the tensor located_ is stored.
};

}  // namespace accel::train
