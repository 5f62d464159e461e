#include "ckpt/io/summed_file.hpp"

#include <algorithm>

#include "base/files/directory.hpp"
#include "ckpt/io/crc32.hpp"

namespace accel::ckpt {
namespace {

constexpr std::size_t kPendingBytes = std::size_t{256} << 10;

}  // namespace

SummedFile::SummedFile(const std::filesystem::path& path) : file_(File::create_new(path)) {}

SummedFile::~SummedFile() {
  if (!finished_) remove_quietly(file_.path());
}

void SummedFile::append(std::span<const std::byte> bytes) { append(bytes, crc32(bytes)); }

void SummedFile::append(std::string_view text) { append(std::as_bytes(std::span(text))); }

void SummedFile::append(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc_ = crc32_combine(crc_, crc, bytes.size());
  if (pending_.size() + bytes.size() > kPendingBytes) flush();
  if (bytes.size() > kPendingBytes) {
    file_.write_at(size_, bytes);
  } else {
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  }
  size_ += bytes.size();
}

void SummedFile::append_zeros(std::uint64_t count) {
  const std::vector<std::byte> zeros(std::min<std::uint64_t>(count, kPendingBytes));
  for (; count > 0; count -= std::min<std::uint64_t>(count, zeros.size())) {
    append(std::span(zeros).first(std::min<std::uint64_t>(count, zeros.size())));
  }
}

FileSummary SummedFile::finish() {
  flush();
  file_.sync();
  finished_ = true;
  FileSummary summary{file_.path().filename().string(), size_, crc_};
  file_.close();
  return summary;
}

void SummedFile::flush() {
  file_.write_at(size_ - pending_.size(), pending_);
  pending_.clear();
}

}  // namespace accel::ckpt
