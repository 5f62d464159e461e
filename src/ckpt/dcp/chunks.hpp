#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/host/large_memory.hpp"
#include "ckpt/tensor/box.hpp"

namespace accel::ckpt {

/// A file of the checkpoint's directory, and the transforms that its items were written with.
struct DcpFile {
  std::string_view name;
  std::span<const std::string> transforms;  ///< Transforms of the bytes, such as "stream.zstd/1".
};

/// A byte range of a file.
struct DcpRange {
  const DcpFile* source = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  [[nodiscard]] std::string_view file() const { return source->name; }
  [[nodiscard]] std::span<const std::string> transforms() const { return source->transforms; }
};

/// The files that a `.metadata` names: at least one for each rank. References to a DcpFile are valid as long
/// as this object lives.
class DcpFiles {
 public:
  struct Entry {
    std::string_view name;
    std::uint32_t transforms = 0;  ///< Index in `transform_lists`.
  };
  /// Copies the names.
  DcpFiles(std::span<const Entry> entries, std::vector<std::vector<std::string>> transform_lists);
  DcpFiles(const DcpFiles&) = delete;
  DcpFiles& operator=(const DcpFiles&) = delete;
  ~DcpFiles() = default;

  [[nodiscard]] const DcpFile& operator[](std::size_t entry) const { return files_[entry]; }

 private:
  LargeVector<char> names_;
  std::vector<std::vector<std::string>> transform_lists_;
  LargeVector<DcpFile> files_;
};

/// A chunk of a tensor: a view into DcpChunks.
struct DcpChunk {
  BoxView box;
  DcpRange where;
};

/// The chunks of one tensor, in two arrays, as there may be a million: a chunk takes 24 bytes, and 16 for
/// each dimension. The DcpFiles must outlive it.
class DcpChunks {
 public:
  class Iterator;

  void reserve(std::size_t count, std::size_t dims);
  /// Adds a chunk, whose place set_place() sets. All boxes must have as many dimensions as the tensor.
  void add(BoxView box);
  void add(const DcpChunk& chunk);
  void set_place(std::size_t chunk, const DcpRange& where) { places_[chunk] = where; }
  /// Copies chunk `from` over chunk `to`.
  void copy(std::size_t from, std::size_t to);
  void truncate(std::size_t count);

  [[nodiscard]] std::size_t size() const { return places_.size(); }
  [[nodiscard]] bool empty() const { return places_.empty(); }
  [[nodiscard]] BoxView box(std::size_t chunk) const {
    const std::span<const std::int64_t> both = std::span(numbers_).subspan(2 * dims_ * chunk, 2 * dims_);
    return {both.first(dims_), both.last(dims_)};
  }
  [[nodiscard]] const DcpRange& where(std::size_t chunk) const { return places_[chunk]; }
  [[nodiscard]] DcpChunk operator[](std::size_t chunk) const { return {box(chunk), where(chunk)}; }
  [[nodiscard]] inline Iterator begin() const;
  [[nodiscard]] inline Iterator end() const;
  /// The boxes of all chunks, in their order.
  [[nodiscard]] LargeVector<BoxView> boxes() const;

 private:
  std::size_t dims_ = 0;
  LargeVector<std::int64_t> numbers_;  // The numbers are, for each chunk, its offsets and then its sizes.
  LargeVector<DcpRange> places_;
};

class DcpChunks::Iterator {
 public:
  using value_type = DcpChunk;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = const DcpChunk*;
  using reference = DcpChunk;

  Iterator(const DcpChunks& chunks, std::size_t at) : chunks_(&chunks), at_(at) {}
  DcpChunk operator*() const { return (*chunks_)[at_]; }
  Iterator& operator++() {
    ++at_;
    return *this;
  }
  friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

 private:
  const DcpChunks* chunks_;
  std::size_t at_;
};

inline DcpChunks::Iterator DcpChunks::begin() const { return {*this, 0}; }
inline DcpChunks::Iterator DcpChunks::end() const { return {*this, size()}; }

}  // namespace accel::ckpt
