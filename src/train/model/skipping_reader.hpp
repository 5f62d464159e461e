#pragma once

#include <caffe2/serialize/read_adapter_interface.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>

#include "base/file.hpp"
#include "structure/model_outline.hpp"

namespace accel::train {

/// Reads a torch zip archive for libtorch, but leaves out the tensors' data records: the buffer that libtorch
/// passes for one stays untouched, and its address is noted beside the record's place in the file.
///
/// libtorch allocates one buffer a record, of the record's size, and makes it the tensor's storage; so a
/// storage's address tells where in the file its bytes are, as long as no storage is replaced in between.
class SkippingReader : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit SkippingReader(const std::filesystem::path& path);
  /// Reads a file of which only the outline is here; its holes are the records left out.
  explicit SkippingReader(ModelOutline outline);

  [[nodiscard]] std::size_t size() const override { return static_cast<std::size_t>(size_); }
  std::size_t read(std::uint64_t position, void* buffer, std::size_t n, const char* what) const override;

  /// Where in the file the bytes of the storage at `data` are; nothing if its record was not skipped.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* data) const;
  /// Reads bytes of the file, data records included, as far as they are here.
  void read_file(std::uint64_t offset, std::span<std::byte> out) const;

  /// The file without the data records at the offsets `without`. The file itself must be here.
  [[nodiscard]] ModelOutline outline(std::span<const std::uint64_t> without) const;

 private:
  std::variant<File, ModelOutline> source_;
  std::uint64_t size_;
  std::map<std::uint64_t, std::uint64_t> records_;  ///< Data records: offset to size.
  mutable std::unordered_map<const void*, std::uint64_t> skipped_;
};

}  // namespace accel::train
