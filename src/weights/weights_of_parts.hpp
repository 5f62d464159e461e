#pragma once

#include <memory>
#include <string>
#include <vector>

#include "structure/structure.hpp"
#include "weights/weight_source.hpp"

namespace accel {

/// The values of a source for a rank of tensor parallelism: elements of a parameter are counted in the rank's
/// part of it (ParameterInfo::part), and read from where they lie in the whole one.
class WeightsOfParts final : public WeightSource {
 public:
  /// `structure`, which is that of `whole`, must outlive this.
  WeightsOfParts(std::unique_ptr<WeightSource> whole, const ModelStructure& structure)
      : whole_(std::move(whole)), structure_(structure) {}

  void read_parameter(std::size_t index, std::int64_t begin, std::span<std::byte> out) override;
  bool read_buffer(const std::string& name, const std::vector<std::int64_t>& shape, ckpt::DType dtype,
                   std::span<std::byte> out) override {
    return whole_->read_buffer(name, shape, dtype, out);
  }
  [[nodiscard]] std::vector<std::string> warnings() const override { return whole_->warnings(); }

 private:
  std::unique_ptr<WeightSource> whole_;
  const ModelStructure& structure_;
};

}  // namespace accel
