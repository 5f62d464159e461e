#include "train/model/skipping_reader.hpp"

#include <caffe2/serialize/inline_container.h>

#include <string>

namespace accel::train {

SkippingReader::SkippingReader(const std::filesystem::path& path)
    : file_(File::open_read(path)), size_(file_.size()) {
  caffe2::serialize::PyTorchStreamReader index(path.string());
  for (const std::string& record : index.getAllRecords()) {
    if (!record.starts_with("data/")) continue;
    const std::uint64_t bytes = index.getRecordSize(record);
    if (bytes > 0) records_[index.getRecordOffset(record)] = bytes;
  }
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
  file_.read_at(position, {static_cast<std::byte*>(buffer), n});
  return n;
}

std::optional<std::uint64_t> SkippingReader::offset_of(const void* data) const {
  const auto found = skipped_.find(data);
  if (found == skipped_.end()) return std::nullopt;
  return found->second;
}

}  // namespace accel::train
