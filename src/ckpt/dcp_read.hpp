#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/dcp/metadata.hpp"
#include "ckpt/io/file_cache.hpp"
#include "ckpt/pickle/value.hpp"
#include "ckpt/tensor/stored_tensor.hpp"

namespace accel::ckpt {

/// A DCP checkpoint, open for reading. Nothing in it is trusted: offsets, shapes and strides are checked
/// before they are used, and what no chunk covers is an Error, never uninitialised memory. Not for use by
/// several threads at once, but for locate() with files of the thread's own.
///
///   DcpReader reader(directory);
///   const DcpTensor& tensor = reader.tensor("model.h.0.weight");
///   reader.read_range(tensor, begin, end, std::as_writable_bytes(std::span(shard)));
class DcpReader {
 public:
  /// Reads `.metadata`. Throws Error: kMissing without one, kCorrupt if it contradicts itself.
  explicit DcpReader(const std::filesystem::path& directory);
  DcpReader(DcpReader&&) noexcept;
  DcpReader& operator=(DcpReader&&) noexcept;
  ~DcpReader();

  [[nodiscard]] const std::filesystem::path& directory() const;
  [[nodiscard]] const DcpMetadata& metadata() const;

  /// The tensor or object of that FQN, or nullptr.
  [[nodiscard]] const DcpTensor* find_tensor(std::string_view fqn) const;
  [[nodiscard]] const DcpObject* find_object(std::string_view fqn) const;
  /// As find_tensor; an absent one is an Error (kMissing) that names the nearest FQN.
  [[nodiscard]] const DcpTensor& tensor(std::string_view fqn) const;

  /// Copies elements [elem_begin, elem_end) of the row-major tensor into `out`, whose size must be that many
  /// elements. Throws Error: kCorrupt for a hole, an overlap, or an item that contradicts the metadata;
  /// kMissing for an absent file.
  void read_range(const DcpTensor& tensor, std::int64_t elem_begin, std::int64_t elem_end,
                  std::span<std::byte> out);

  /// Opens every chunk's archive, checks it against the metadata, and says where its elements are. Chunks
  /// without elements are left out. Not cached, so that memory does not grow with the checkpoint.
  [[nodiscard]] StoredTensor locate(const DcpTensor& tensor);
  /// The same, for several threads at once, each with `files` of its own, which are of directory().
  [[nodiscard]] StoredTensor locate(const DcpTensor& tensor, FileCache& files) const;

  /// A bytes item as a value: a scalar, a list of names, ...; tensors inside are Objects.
  [[nodiscard]] pickle::Value read_object(const DcpObject& object);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accel::ckpt
