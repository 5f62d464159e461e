#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/torch/legacy.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {

/// The record that holds the storage of `tensor`. Throws Error (kCorrupt) if the archive has none, or if it
/// has fewer bytes than the pickle says.
[[nodiscard]] const ZipEntry& storage_of(const ZipIndex& zip, const TorchTensor& tensor);

/// A file of torch.save or TorchScript, open for reading: its pickle, and where the storages are that the
/// pickle refers to. It is an archive, or of torch before 1.6. What the window refers to must outlive it.
class TorchFile {
 public:
  explicit TorchFile(FileWindow window);

  [[nodiscard]] const FileWindow& window() const { return window_; }
  /// The directory of the archive. Throws Error (kFailure) for a file of torch before 1.6.
  [[nodiscard]] const ZipIndex& zip() const;

  /// The bytes of `data.pkl`. Throws Error as read_pickle() does.
  [[nodiscard]] std::vector<std::byte> read_pickle_bytes() const;
  /// `data.pkl` as a value. Throws Error: kCorrupt if there is none, kFailure for a big-endian archive.
  [[nodiscard]] pickle::Value read_pickle() const;

  /// The offset of the tensor's first element in the window. Throws Error: kCorrupt if the record of its
  /// storage is missing or too small, kFailure for a tensor with an obstacle.
  [[nodiscard]] std::uint64_t offset_of(const TorchTensor& tensor) const;

 private:
  FileWindow window_;
  std::variant<ZipIndex, LegacyTorch> contents_;
};

}  // namespace accel::ckpt
