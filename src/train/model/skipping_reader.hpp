#pragma once

#include <caffe2/serialize/read_adapter_interface.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>

#include "base/files/file.hpp"
#include "structure/model_outline.hpp"

namespace accel::train {

/// Reads a torch zip archive for libtorch, but skips the data records of tensors: the buffer that libtorch
/// passes for such a record stays untouched, and its address is recorded with the offset of the record in the
/// file.
///
/// libtorch allocates one buffer of the record's size for each record and makes it the storage of the tensor.
/// The address of a storage therefore tells where its bytes are in the file, as long as no storage is
/// replaced.
class SkippingReader : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit SkippingReader(const std::filesystem::path& path);
  /// Reads a file of which this rank has only the outline. The holes of the outline are the skipped records.
  explicit SkippingReader(ModelOutline outline);

  [[nodiscard]] std::size_t size() const override { return static_cast<std::size_t>(size_); }
  std::size_t read(std::uint64_t position, void* buffer, std::size_t n, const char* what) const override;

  /// The offset in the file of the bytes of the storage at `data`; nothing if its record was not skipped.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* data) const;
  /// Reads bytes of the file, also of data records. Bytes that an outline does not have are an Error.
  void read_file(std::uint64_t offset, std::span<std::byte> out) const;
  /// The same, with zeros for the bytes that an outline does not have.
  void read_file_or_zeros(std::uint64_t offset, std::span<std::byte> out) const;

  /// The outline of the file without the data records at the offsets `without`. The reader must have been
  /// opened by path.
  [[nodiscard]] ModelOutline outline(std::span<const std::uint64_t> without) const;

 private:
  std::variant<File, ModelOutline> source_;
  std::uint64_t size_;
  std::map<std::uint64_t, std::uint64_t> records_;  ///< Maps a data record's offset to its size.
  mutable std::unordered_map<const void*, std::uint64_t> skipped_;
};

}  // namespace accel::train
