#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "train/device/storage_device.hpp"

namespace accel::train {

/// Tensors that lie in a storage apart for a while.
///
/// They come back with their values, sizes, and, if no memory lies between their elements, strides; what is
/// expanded is stored once, and expanded again. A tensor that is not on the storage's computing device, or is
/// no plain strided one, stays where it is.
class KeptTensors {
 public:
  /// Starts to copy. The tensors must not change before let_go().
  KeptTensors(std::shared_ptr<StorageDevice> storage, std::span<const at::Tensor> tensors);
  KeptTensors(const KeptTensors&) = delete;
  KeptTensors& operator=(const KeptTensors&) = delete;
  ~KeptTensors();

  /// Lets what the current stream does next come after the copies, and the tensors go.
  void let_go();
  /// Starts to copy them back, unless that has begun.
  void fetch();
  /// The tensors, without history, in the order in which they came; once. Starts to fetch them if need be,
  /// and lets what the current stream does next come after that.
  std::vector<at::Tensor> take();
  [[nodiscard]] bool is_taken() const { return taken_; }

 private:
  struct Kept {
    std::size_t same_as = 0;  ///< Where in the list the same tensor stands first: here, or before.
    at::Tensor original;      ///< Until let_go(), or, if it stays where it is, always.
    std::int64_t version = 0;
    std::vector<std::int64_t> sizes;
    at::Tensor stored;
    at::Tensor back;
    std::unique_ptr<Copy> copy;
  };

  std::shared_ptr<StorageDevice> storage_;
  std::vector<Kept> kept_;
  bool fetched_ = false;
  bool taken_ = false;
};

/// What the calls of one unit keep between forward and backward, which comes through them in reverse.
class KeptOfUnit {
 public:
  explicit KeptOfUnit(std::shared_ptr<StorageDevice> storage) : storage_(std::move(storage)) {}

  std::shared_ptr<KeptTensors> keep(std::span<const at::Tensor> tensors);
  /// Starts to fetch what the last call keeps whose backward has not come yet, for it is near.
  void fetch_next();

 private:
  std::shared_ptr<StorageDevice> storage_;
  std::vector<std::weak_ptr<KeptTensors>> calls_;
};

}  // namespace accel::train
