#pragma once

#include <string>
#include <vector>

#include "ckpt/read/checkpoint.hpp"
#include "helpers.hpp"

namespace accel::ckpt::testing {

/// A checkpoint whose tensors are truths, each in a raw file of its own.
class RawCheckpoint final : public Checkpoint {
 public:
  explicit RawCheckpoint(const std::vector<Truth>& truths, Kind kind = Kind::kTorch) {
    contents_.kind = kind;
    contents_.path = dir_.path();
    contents_.directory = dir_.path();
    for (const Truth& truth : truths) {
      write_file(dir_ / std::to_string(contents_.tensors.size()), truth.data);
      contents_.tensors.push_back({fqn_of(truth.path), truth.path, truth.dtype, truth.shape});
    }
  }

  [[nodiscard]] pickle::Value read_object(std::size_t) override { return {}; }

 private:
  [[nodiscard]] StoredTensor locate_in(std::size_t tensor, FileCache&) const override {
    const TensorEntry& entry = contents_.tensors.at(tensor);
    StoredTensor stored{entry.name, entry.dtype, entry.shape, {}};
    if (checked_numel(entry.shape) > 0) {
      stored.extents.push_back(
          {std::to_string(tensor), 0, Box::whole(entry.shape), row_major_strides(entry.shape)});
    }
    return stored;
  }

  TempDir dir_;
};

}  // namespace accel::ckpt::testing
