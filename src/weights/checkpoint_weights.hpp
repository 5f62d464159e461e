#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ckpt/read/search.hpp"
#include "structure/structure.hpp"
#include "weights/checkpoint_tensors.hpp"
#include "weights/weight_source.hpp"

namespace accel {

/// Values from a checkpoint of any kind, by name. A tied parameter is found under any of its names. Tensors
/// of another dtype are converted. Tensors that the model does not have are ignored with one warning.
class CheckpointWeights final : public WeightSource {
 public:
  enum class Use {
    kBegin,          ///< A training begins with these values.
    kResume,         ///< A training goes on with them.
    kResumeAdapter,  ///< A training goes on, and training.checkpoint.adapter_only wrote the checkpoint.
  };

  /// Throws Error (kUsage) that lists tensors that are missing, with the nearest name in the checkpoint, and
  /// tensors of another shape or of a dtype that cannot be converted. If a training goes on, trained
  /// parameters may have the names that PEFT gives in files, and all frozen ones may be missing, which makes
  /// it the checkpoint of an adapter. Of another one read_buffer() throws for a buffer that is missing, and
  /// the buffers of kResumeAdapter are elsewhere. `naming` applies before tensors are looked for.
  CheckpointWeights(const ModelStructure& structure, const std::filesystem::path& path, Use use = Use::kBegin,
                    const WeightNames& naming = {});

  /// Makes reading note in `sums` what is read, as TensorReader::note_in() does.
  void note_in(ckpt::ReadSums* sums) { tensors_.note_in(sums); }
  /// Whether the checkpoint has parameter `index`. read_parameter() must not be called for another.
  [[nodiscard]] bool has_parameter(std::size_t index) const {
    return parameters_.at(index).tensor != nullptr;
  }
  [[nodiscard]] bool has_buffer(const std::string& name) { return tensors_.find(name) != nullptr; }
  /// Whether the checkpoint has every parameter.
  [[nodiscard]] bool is_complete() const { return is_complete_; }

  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) override;
  bool read_buffer(const std::string& name, const std::vector<std::int64_t>& shape, ckpt::DType dtype,
                   std::span<std::byte> out) override;

  /// Lists other checkpoints beside the one that was read, tensors that the model does not have, and buffers
  /// that are not in the checkpoint.
  [[nodiscard]] std::vector<std::string> warnings() const override;

 private:
  using Tensor = CheckpointTensors::Tensor;
  struct Wanted {
    const Tensor* tensor = nullptr;
    ckpt::DType dtype = ckpt::DType::kFloat32;
    std::string name;  ///< The name of the tensor.
    /// Tensors under the parameter's other names, which must have the same values.
    std::vector<std::pair<std::string, const Tensor*>> tied;
  };

  ckpt::FoundCheckpoint found_;
  CheckpointTensors tensors_;
  std::vector<Wanted> parameters_;  ///< One entry per parameter, in the order of the structure.
  std::vector<std::string> missing_buffers_;
  Use use_;
  bool is_complete_ = true;  ///< Whether the checkpoint has every parameter.
};

}  // namespace accel
