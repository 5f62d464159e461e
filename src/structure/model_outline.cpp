#include "structure/model_outline.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel {
namespace {

Error broken(const char* what) {
  return {ErrorKind::kCorrupt, std::string("the outline of the model file ") + what};
}

}  // namespace

ModelOutline ModelOutline::of(const File& file, std::map<std::uint64_t, std::uint64_t> holes) {
  ModelOutline outline;
  outline.file_bytes_ = file.size();
  outline.holes_ = std::move(holes);
  std::uint64_t at = 0;
  const auto take_until = [&](std::uint64_t end) {
    const std::size_t had = outline.rest_.size();
    outline.rest_.resize(had + static_cast<std::size_t>(end - at));
    file.read_at(at, std::span(outline.rest_).subspan(had));
  };
  for (const auto& [offset, bytes] : outline.holes_) {
    take_until(offset);
    at = offset + bytes;
  }
  take_until(outline.file_bytes_);
  return outline;
}

ModelOutline ModelOutline::of_bytes(std::vector<std::byte> file) {
  ModelOutline outline;
  outline.file_bytes_ = file.size();
  outline.rest_ = std::move(file);
  return outline;
}

// The format: the size of the file, the number of holes, the offset and size of each hole, and all bytes
// between the holes. Numbers have 8 bytes in the byte order of the machine, because the bytes never leave the
// job.
std::vector<std::byte> ModelOutline::to_bytes() const {
  std::vector<std::uint64_t> numbers = {file_bytes_, holes_.size()};
  for (const auto& [offset, bytes] : holes_) {
    numbers.push_back(offset);
    numbers.push_back(bytes);
  }
  const auto head = std::as_bytes(std::span(numbers));
  std::vector<std::byte> bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), rest_.begin(), rest_.end());
  return bytes;
}

ModelOutline ModelOutline::from_bytes(std::span<const std::byte> bytes) {
  const auto take = [&] {
    std::uint64_t number = 0;
    if (bytes.size() < sizeof number) throw broken("ends early");
    std::memcpy(&number, bytes.data(), sizeof number);
    bytes = bytes.subspan(sizeof number);
    return number;
  };
  ModelOutline outline;
  outline.file_bytes_ = take();
  std::uint64_t end = 0;
  std::uint64_t left_out = 0;
  for (std::uint64_t hole = take(); hole > 0; --hole) {
    const std::uint64_t offset = take();
    const std::uint64_t size = take();
    if (offset < end) throw broken("has holes that overlap");
    end = checked_add(offset, size);
    left_out = checked_add(left_out, size);
    outline.holes_.emplace(offset, size);
  }
  if (end > outline.file_bytes_ || outline.file_bytes_ - left_out != bytes.size())
    throw broken("is not as long as it says");
  outline.rest_.assign(bytes.begin(), bytes.end());
  return outline;
}

bool ModelOutline::has(std::uint64_t offset, std::uint64_t bytes) const {
  return std::none_of(holes_.begin(), holes_.end(), [&](const auto& hole) {
    const auto& [begin, size] = hole;
    return std::max(begin, offset) < std::min(begin + size, offset + bytes);
  });
}

void ModelOutline::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > file_bytes_ || out.size() > file_bytes_ - offset) throw broken("is shorter than what is read");
  const std::uint64_t end = offset + out.size();
  std::fill(out.begin(), out.end(), std::byte{0});
  std::uint64_t at = 0;     // The offset in the file.
  std::uint64_t taken = 0;  // The offset in rest_.
  const auto copy_until = [&](std::uint64_t until) {
    const std::uint64_t from = std::max(at, offset);
    const std::uint64_t to = std::min(until, end);
    if (from < to) std::memcpy(out.data() + (from - offset), rest_.data() + taken + (from - at), to - from);
    taken += until - at;
  };
  for (const auto& [begin, size] : holes_) {
    copy_until(begin);
    at = begin + size;
  }
  copy_until(file_bytes_);
}

}  // namespace accel
