#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ckpt/pickle/value.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/zip/index.hpp"

namespace accel::ckpt {

/// The record that holds the storage of `tensor`. Throws Error (kCorrupt) if the archive has none, or if it
/// has fewer bytes than the pickle says.
[[nodiscard]] const ZipEntry& storage_of(const ZipIndex& zip, const TorchTensor& tensor);

/// What torch.save or TorchScript wrote, open for reading: its pickle, and where the storages are that the
/// pickle refers to. Borrows what the window borrows.
class TorchFile {
 public:
  explicit TorchFile(FileWindow window);

  [[nodiscard]] const FileWindow& window() const { return window_; }
  [[nodiscard]] const ZipIndex& zip() const { return zip_; }

  /// The bytes of `data.pkl`. Throws Error as read_pickle() does.
  [[nodiscard]] std::vector<std::byte> read_pickle_bytes() const;
  /// `data.pkl` as a value. Throws Error: kCorrupt without one; kFailure for a big-endian archive.
  [[nodiscard]] pickle::Value read_pickle() const;

  /// Where the tensor's first element is in the window; its storage's record must be as large as it needs.
  /// Throws Error (kCorrupt), and kFailure for a tensor that is more than a view of its storage.
  [[nodiscard]] std::uint64_t offset_of(const TorchTensor& tensor) const;

 private:
  FileWindow window_;
  ZipIndex zip_;
};

}  // namespace accel::ckpt
