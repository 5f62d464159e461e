#include "ckpt/io/summed_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/files/directory.hpp"
#include "ckpt/io/crc32.hpp"

namespace accel::ckpt {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{4} << 20;
static_assert(kBlockBytes % kDirectAlignment == 0);

}  // namespace

std::uint32_t crc32_of(const File& file, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::byte> block(static_cast<std::size_t>(std::min<std::uint64_t>(end - begin, kBlockBytes)));
  std::uint32_t crc = 0;
  while (begin < end) {
    const auto part =
        std::span(block).first(static_cast<std::size_t>(std::min<std::uint64_t>(end - begin, block.size())));
    file.read_at(begin, part);
    crc = crc32(part, crc);
    begin += part.size();
  }
  return crc;
}

void SummedFile::Free::operator()(std::byte* memory) const { std::free(memory); }

SummedFile::SummedFile(const std::filesystem::path& path)
    : file_(File::create_new(path)),
      block_(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, kBlockBytes))) {
  if (block_ == nullptr) {
    remove_quietly(file_.path());
    throw std::bad_alloc();
  }
}

SummedFile::~SummedFile() {
  if (!finished_) remove_quietly(file_.path());
}

void SummedFile::append(std::span<const std::byte> bytes) { append(bytes, crc32(bytes)); }

void SummedFile::append(std::string_view text) { append(std::as_bytes(std::span(text))); }

void SummedFile::append(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc_ = crc32_combine(crc_, crc, bytes.size());
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBlockBytes - pending_);
    std::memcpy(block_.get() + pending_, bytes.data(), count);
    pending_ += count;
    size_ += count;
    bytes = bytes.subspan(count);
    if (pending_ == kBlockBytes) {
      file_.set_direct(true);
      flush();
    }
  }
}

void SummedFile::append_zeros(std::uint64_t count) {
  const std::vector<std::byte> zeros(std::min<std::uint64_t>(count, kDirectAlignment));
  for (; count > 0; count -= std::min<std::uint64_t>(count, zeros.size())) {
    append(std::span(zeros).first(std::min<std::uint64_t>(count, zeros.size())));
  }
}

FileSummary SummedFile::finish() {
  // What is left need not be aligned.
  file_.set_direct(false);
  flush();
  file_.sync();
  finished_ = true;
  FileSummary summary{file_.path().filename().string(), size_, crc_};
  file_.close();
  return summary;
}

void SummedFile::flush() {
  file_.write_at(size_ - pending_, {block_.get(), pending_});
  pending_ = 0;
}

}  // namespace accel::ckpt
