#pragma once

#include "train/model/weight_source.hpp"

namespace accel::train {

/// Random values for a model without weights: matrices and larger are normal with the given standard
/// deviation, vectors are 1, those called `bias` 0. An element depends on the seed, the parameter's place in
/// the structure and its own place in the parameter alone, so that every world size has the same model.
class InitialWeights final : public WeightSource {
 public:
  InitialWeights(const ModelStructure& structure, double std, std::uint64_t seed)
      : structure_(structure), std_(std), seed_(seed) {}

  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) override;
  /// Buffers have no random values: the model file's own stay.
  bool read_buffer(const std::string& /*name*/, const std::vector<std::int64_t>& /*shape*/,
                   ckpt::DType /*dtype*/, std::span<std::byte> /*out*/) override {
    return false;
  }

 private:
  const ModelStructure& structure_;
  double std_;
  std::uint64_t seed_;
};

}  // namespace accel::train
