#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/summed_file.hpp"
#include "ckpt/zip/layout.hpp"

namespace accel::ckpt {

/// A torch.save archive to be written (docs/formats.md, "torch zip"): a pickle and the storages it refers to.
/// Everything but the bytes of the storages is known before it is written.
class TorchArchive {
 public:
  /// `pickle` is the contents of data.pkl; it refers to the storages as '0', '1', ...
  explicit TorchArchive(std::string pickle, std::span<const std::uint64_t> storage_bytes = {},
                        std::string_view root = "archive");

  [[nodiscard]] const ZipLayout& layout() const { return layout_; }
  [[nodiscard]] std::uint64_t total_bytes() const { return layout_.total_bytes(); }
  /// Where the storage's bytes begin in the archive; a multiple of 64.
  [[nodiscard]] std::uint64_t storage_offset(std::size_t storage) const;
  /// The storage that a record of the layout holds, or nothing if the record holds something else.
  [[nodiscard]] std::optional<std::size_t> storage_of(std::size_t record) const;
  /// The contents of a record that holds no storage.
  [[nodiscard]] std::string_view text_of(std::size_t record) const;

  /// Gives the next bytes of a storage. It is called for each storage in order, until it has given all bytes
  /// of the storage. The bytes must stay valid until the next call.
  using StorageSource = std::function<std::span<const std::byte>(std::size_t storage)>;

  /// Appends the archive to `out`. Storages are aligned relative to where the archive begins.
  void write(SummedFile& out, const StorageSource& source) const;

 private:
  ZipLayout layout_;
  std::string pickle_;
  std::size_t storages_ = 0;
  std::string id_;
};

}  // namespace accel::ckpt
