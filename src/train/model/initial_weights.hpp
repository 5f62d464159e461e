#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "structure/structure.hpp"
#include "weights/weight_source.hpp"

namespace accel::train {

/// Random values for a model without weights. Parameters of two or more dimensions are normal with the given
/// standard deviation, vectors called `bias` are 0, and other vectors are 1. An element depends only on the
/// seed, the index of the parameter in the structure and the index of the element in the parameter, so that
/// the model is the same at every world size.
class InitialWeights final : public WeightSource {
 public:
  InitialWeights(const ModelStructure& structure, double std, std::uint64_t seed)
      : structure_(structure), std_(std), seed_(seed) {}

  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) override;
  /// Buffers have no random values. They keep the values of the model file.
  bool read_buffer(const std::string& /*name*/, const std::vector<std::int64_t>& /*shape*/,
                   ckpt::DType /*dtype*/, std::span<std::byte> /*out*/) override {
    return false;
  }

 private:
  const ModelStructure& structure_;
  double std_;
  std::uint64_t seed_;
  /// The last block that was drawn, and its parameter and number: parts of columns read it row by row.
  std::pair<std::size_t, std::int64_t> drawn_ = {0, -1};
  at::Tensor block_;
};

}  // namespace accel::train
