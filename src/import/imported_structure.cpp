#include "import/imported_structure.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/pt2/archive.hpp"
#include "ckpt/read/kind.hpp"

namespace accel {
namespace {

/// The bytes of a planned file of one archive, whose segments are text and parts of files.
std::vector<std::byte> bytes_of(const ckpt::OutputFile& file, const std::filesystem::path& archive) {
  std::uint64_t copied = 0;
  for (const ckpt::OutputSegment& segment : file.segments) {
    if (!std::holds_alternative<std::string>(segment.content)) copied += segment.bytes;
  }
  // Records of a file that is not torch's may lie on each other.
  if (copied > std::filesystem::file_size(archive))
    throw Error(ErrorKind::kCorrupt, fmt::format("'{}': its records overlap", archive.string()));
  std::vector<std::byte> bytes(file.bytes);
  const auto put = [&](std::uint64_t at, const std::string& text) {
    std::memcpy(std::span(bytes).subspan(at, text.size()).data(), text.data(), text.size());
  };
  const ckpt::ZipLayout& layout = file.archives.at(0).layout;
  std::vector<std::uint32_t> crcs;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < layout.records().size(); ++i) {
    const ckpt::OutputSegment& segment = file.segments.at(i);
    const std::span<std::byte> data = std::span(bytes).subspan(segment.offset, segment.bytes);
    if (const auto* text = std::get_if<std::string>(&segment.content)) {
      put(segment.offset, *text);
    } else {
      const auto& part = std::get<ckpt::FileContent>(segment.content);
      File::open_read(part.file).read_at(part.offset, data);
    }
    crcs.push_back(ckpt::crc32(data));
    const std::string descriptor = layout.descriptor(i, crcs.back());
    put(layout.records()[i].header_offset, layout.header(i));
    put(segment.offset + segment.bytes, descriptor);
    end = segment.offset + segment.bytes + descriptor.size();
  }
  put(end, layout.directory(crcs));
  return bytes;
}

}  // namespace

bool is_pt2(const std::filesystem::path& path) {
  try {
    return ckpt::kind_of(path) == ckpt::Kind::kPt2;
  } catch (const Error&) {
    return false;
  }
}

ImportedStructure import_structure(const std::filesystem::path& path, ImportedValues values) {
  const ckpt::Pt2Archive archive(path);
  ImportPlan plan = plan_import("model.pt", archive, values);
  return {bytes_of(plan.file, path), plan.has_values, std::move(plan.random_operators),
          std::move(plan.signature)};
}

}  // namespace accel
