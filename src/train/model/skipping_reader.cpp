#include "train/model/skipping_reader.hpp"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/metadata_limit.hpp"

namespace accel::train {

SkippingReader::SkippingReader(const std::filesystem::path& path)
    : source_(File::open_read(path)), size_(std::get<File>(source_).size()) {
  caffe2::serialize::PyTorchStreamReader index(path.string());
  for (const std::string& record : index.getAllRecords()) {
    const std::uint64_t bytes = index.getRecordSize(record);
    if (!record.starts_with("data/")) {
      // libtorch unpacks the record into memory, however large it claims to be.
      check_metadata_bytes(fmt::format("'{}': record '{}'", path.string(), record), bytes);
      continue;
    }
    if (bytes > 0) records_[index.getRecordOffset(record)] = bytes;
  }
}

SkippingReader::SkippingReader(ModelOutline outline)
    : source_(std::move(outline)), size_(std::get<ModelOutline>(source_).file_bytes()) {
  records_ = std::get<ModelOutline>(source_).holes();
}

void SkippingReader::read_file(std::uint64_t offset, std::span<std::byte> out) const {
  if (const auto* file = std::get_if<File>(&source_)) return file->read_at(offset, out);
  const auto& outline = std::get<ModelOutline>(source_);
  if (!outline.has(offset, out.size())) {
    throw Error(ErrorKind::kFailure,
                "cannot read the values of a parameter: this rank has only the outline of the model file");
  }
  outline.read(offset, out);
}

void SkippingReader::read_file_or_zeros(std::uint64_t offset, std::span<std::byte> out) const {
  if (const auto* file = std::get_if<File>(&source_)) return file->read_at(offset, out);
  std::get<ModelOutline>(source_).read(offset, out);
}

ModelOutline SkippingReader::outline(std::span<const std::uint64_t> without) const {
  if (const auto* outline = std::get_if<ModelOutline>(&source_)) return *outline;
  std::map<std::uint64_t, std::uint64_t> holes;
  for (const std::uint64_t offset : without) holes.emplace(offset, records_.at(offset));
  return ModelOutline::of(std::get<File>(source_), std::move(holes));
}

std::size_t SkippingReader::read(std::uint64_t position, void* buffer, std::size_t n,
                                 const char* /*what*/) const {
  auto record = records_.upper_bound(position);
  if (record != records_.begin()) {
    --record;
    const auto [begin, bytes] = *record;
    if (position >= begin && position + n <= begin + bytes) {
      if (position == begin) skipped_[buffer] = begin;
      return n;
    }
  }
  const std::span out(static_cast<std::byte*>(buffer), n);
  // libtorch looks for the end of the archive in a block that may begin in a hole.
  read_file_or_zeros(position, out);
  return n;
}

std::optional<std::uint64_t> SkippingReader::offset_of(const void* data) const {
  const auto found = skipped_.find(data);
  if (found == skipped_.end()) return std::nullopt;
  return found->second;
}

}  // namespace accel::train
