#include "ckpt/verify/archive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/pickle/reader.hpp"
#include "ckpt/torch/file.hpp"
#include "ckpt/zip/format.hpp"

namespace accel::ckpt {
namespace {

constexpr std::uint64_t kInlineBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kPickleLimitBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kCompressedLimitBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kDescriptor32 = 16;  // The size with signature, CRC and two sizes.
constexpr std::uint64_t kDescriptor64 = 24;

class ArchiveChecker {
 public:
  /// `path` is the file of an archive that is not packed.
  ArchiveChecker(FileWindow window, std::optional<std::filesystem::path> path, const ArchivePlace& place)
      : window_(std::move(window)), path_(std::move(path)), place_(place) {}

  ArchiveCheck run() {
    const ZipIndex& zip = result_.zip.emplace(window_);
    check_end();
    check_order();
    for (const ZipEntry& entry : zip.entries()) guarded(entry, [&] { check_record(entry); });
    return std::move(result_);
  }

 private:
  void report(FindingKind kind, const ZipEntry& entry, std::uint64_t begin, std::uint64_t length,
              const std::string& text) {
    add(kind, begin, length, fmt::format("record '{}' {}", entry.name, text));
  }

  // A part of what is packed has no place in the file: the finding is about the whole stream.
  void add(FindingKind kind, std::uint64_t begin, std::uint64_t length, std::string text) {
    const std::uint64_t at = path_ ? place_.offset + begin : place_.offset;
    const std::uint64_t end = path_ ? at + length : place_.offset + place_.length;
    result_.findings.push_back({kind, place_.file, place_.tensor, at, end, std::move(text)});
  }

  // An Error (kCorrupt) of `action` becomes a finding about the record.
  template <class Action>
  void guarded(const ZipEntry& entry, Action action) {
    const std::optional<Error> broken = corruption_in(action);
    if (!broken) return;
    const bool names_record = broken->message().starts_with("record '");
    add(FindingKind::kBroken, entry.header_offset, entry.stored_size,
        names_record ? broken->message() : fmt::format("record '{}': {}", entry.name, broken->message()));
  }

  // The end records state some numbers twice. Other readers check parts of them that ours does not need.
  void check_end() {
    const std::uint64_t at = window_.size() - zip::kEndBytes;
    const auto end = window_.read(at, zip::kEndBytes);
    if (get_uint(end, 0, 4) != zip::kEnd) return;  // A comment follows, which torch never writes.
    const std::uint64_t count16 = std::min<std::uint64_t>(result_.zip->entries().size(), zip::kMax16);
    if (get_uint(end, 4, 4) != 0 || get_uint(end, 8, 2) != count16 || get_uint(end, 10, 2) != count16) {
      add(FindingKind::kBroken, at, zip::kEndBytes, "the archive's end record contradicts its directory");
    }
    if (at < zip::kZip64LocatorBytes) return;
    const auto locator = window_.read(at - zip::kZip64LocatorBytes, zip::kZip64LocatorBytes);
    if (get_uint(locator, 0, 4) != zip::kZip64Locator) return;
    const std::uint64_t end64_at = get_uint(locator, 8, 8);
    const auto end64 = window_.read(end64_at, zip::kZip64EndBytes);
    const bool one_disk = get_uint(locator, 4, 4) == 0 && get_uint(locator, 16, 4) == 1 &&
                          get_uint(end64, 16, 8) == 0 && get_uint(end64, 24, 8) == get_uint(end64, 32, 8);
    if (!one_disk || get_uint(end64, 4, 8) != zip::kZip64EndBytes - 12) {
      add(FindingKind::kBroken, end64_at, zip::kZip64EndBytes,
          "the archive's zip64 end record contradicts itself");
    }
  }

  // Checks that no record begins before the data of the one before it ends.
  void check_order() {
    std::vector<const ZipEntry*> sorted;
    for (const ZipEntry& entry : result_.zip->entries()) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(),
              [](const ZipEntry* a, const ZipEntry* b) { return a->header_offset < b->header_offset; });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      const ZipEntry& before = *sorted[i - 1];
      const std::uint64_t least = before.header_offset + zip::kLocalHeaderBytes + before.stored_size;
      if (sorted[i]->header_offset >= least) continue;
      report(FindingKind::kOverlap, *sorted[i], sorted[i]->header_offset, sorted[i]->stored_size,
             fmt::format("overlaps '{}'", before.name));
    }
  }

  struct LocalHeader {
    std::uint64_t data = 0;  // The offset at which the record's data begins.
    bool has_descriptor = false;
  };

  // Nothing if the header does not tell where the data begins.
  std::optional<LocalHeader> check_local_header(const ZipEntry& entry) {
    const auto header = window_.read(entry.header_offset, zip::kLocalHeaderBytes);
    const auto reject = [&](const std::string& why) {
      report(FindingKind::kBroken, entry, entry.header_offset, zip::kLocalHeaderBytes, why);
      return std::nullopt;
    };
    if (get_uint(header, 0, 4) != zip::kLocalHeader)
      return reject("has no local header where it should begin");
    const std::uint64_t name_bytes = get_uint(header, 26, 2);
    const std::uint64_t extra_bytes = get_uint(header, 28, 2);
    const auto name = window_.read(entry.header_offset + zip::kLocalHeaderBytes, name_bytes);
    if (text_of(name) != entry.name) {
      return reject(fmt::format("is called '{}' in its local header", text_of(name)));
    }
    const std::uint64_t flags = get_uint(header, 6, 2);
    if (get_uint(header, 8, 2) != entry.method || (flags & ~zip::kKnownFlags) != 0) {
      return reject("has other flags, or another method, in its local header than it should");
    }
    const std::uint64_t data = entry.header_offset + zip::kLocalHeaderBytes + name_bytes + extra_bytes;
    if (checked_add(data, entry.stored_size) > window_.size()) return reject("reaches beyond the archive");
    const bool has_descriptor = (flags & zip::kHasDescriptor) != 0;
    if (!has_descriptor && get_uint(header, 14, 4) != entry.crc32) {
      return reject("has another CRC in its local header than in the directory");
    }
    return LocalHeader{data, has_descriptor};
  }

  void check_descriptor(const ZipEntry& entry, std::uint64_t at) {
    const auto bytes = window_.read(at, std::min(kDescriptor64, window_.size() - at));
    const auto matches = [&](std::uint64_t total, std::size_t width) {
      return bytes.size() >= total && get_uint(bytes, 0, 4) == zip::kDescriptor &&
             get_uint(bytes, 4, 4) == entry.crc32 && get_uint(bytes, 8, width) == entry.stored_size &&
             get_uint(bytes, 8 + width, width) == entry.size;
    };
    if (matches(kDescriptor32, 4) || matches(kDescriptor64, 8)) return;
    report(FindingKind::kBroken, entry, at, kDescriptor32,
           "has no data descriptor behind it that agrees with the directory");
  }

  void check_record(const ZipEntry& entry) {
    const std::optional<LocalHeader> header = check_local_header(entry);
    if (!header) return;
    check_data(entry, header->data);
    if (header->has_descriptor) check_descriptor(entry, header->data + entry.stored_size);
  }

  void check_data(const ZipEntry& entry, std::uint64_t begin) {
    const auto broken = [&](const std::string& text) {
      report(FindingKind::kBroken, entry, begin, entry.stored_size, text);
    };
    const bool is_pickle = &entry == result_.zip->find("data.pkl");
    if (entry.method == 0 && entry.size != entry.stored_size) {
      return broken(fmt::format("is stored without compression, but has {} bytes instead of {}",
                                entry.stored_size, entry.size));
    }
    if (entry.method != 0 && entry.method != zip::kDeflated) {
      return broken(fmt::format("is compressed by method {}, which torch does not use", entry.method));
    }
    if (entry.method == 0 && entry.size > kInlineBytes && !is_pickle) {
      if (!path_) {
        compare(entry, begin, sum_of(begin, entry.size));
      } else {
        const std::uint64_t at = place_.offset + begin;
        result_.sums.push_back({{*path_, at, entry.size, entry.crc32},
                                {FindingKind::kChecksum, place_.file, place_.tensor, at, at + entry.size,
                                 fmt::format("record '{}'", entry.name)}});
      }
      return;
    }
    if (entry.stored_size > kPickleLimitBytes || (entry.method != 0 && entry.size > kCompressedLimitBytes))
      return broken("is too large to be read at once");
    std::vector<std::byte> data = window_.read(begin, entry.stored_size);
    if (entry.method == zip::kDeflated) data = inflate(data, entry);
    if (!compare(entry, begin, crc32(data))) return;
    if (is_pickle) result_.pickle = pickle::parse(data);
    if (&entry == result_.zip->find("byteorder") && text_of(data) != "little") {
      broken(fmt::format("says '{}', only little-endian files can be read", text_of(data)));
    }
  }

  [[nodiscard]] std::uint32_t sum_of(std::uint64_t begin, std::uint64_t length) const {
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < length; at += kInlineBytes) {
      crc = crc32(window_.read(begin + at, std::min(kInlineBytes, length - at)), crc);
    }
    return crc;
  }

  bool compare(const ZipEntry& entry, std::uint64_t begin, std::uint32_t crc) {
    if (crc == entry.crc32) return true;
    report(FindingKind::kChecksum, entry, begin, entry.stored_size,
           fmt::format("has CRC {:08x}, {:08x} is expected", crc, entry.crc32));
    return false;
  }

  FileWindow window_;
  // Nothing if the archive is packed. A packed archive is cheapest to read from front to back.
  std::optional<std::filesystem::path> path_;
  const ArchivePlace& place_;
  ArchiveCheck result_;
};

// A finding of the whole archive. One that is a file by itself needs no range.
Finding finding_at(const ArchivePlace& place, FindingKind kind, std::string text) {
  const std::uint64_t end = place.tensor.empty() ? 0 : place.offset + place.length;
  return {kind, place.file, place.tensor, place.offset, end, std::move(text)};
}

template <class MakeWindow>
ArchiveCheck check_window(MakeWindow make_window, std::optional<std::filesystem::path> path,
                          const ArchivePlace& place) {
  ArchiveCheck result;
  const auto broken =
      corruption_in([&] { result = ArchiveChecker(make_window(), std::move(path), place).run(); });
  if (broken) {
    result.findings.push_back({FindingKind::kBroken, place.file, place.tensor, place.offset,
                               place.offset + place.length, broken->message()});
  }
  return result;
}

}  // namespace

ArchiveCheck check_archive(const File& file, const ArchivePlace& place) {
  return check_window([&] { return FileWindow(file, place.offset, place.length); }, file.path(), place);
}

ArchiveCheck check_archive(ByteSource& source, const ArchivePlace& place) {
  return check_window([&] { return FileWindow(source); }, std::nullopt, place);
}

void check_has_pickle(const ArchivePlace& place, ArchiveCheck& archive) {
  if (!archive.zip || archive.zip->entries().empty() || archive.zip->find("data.pkl") != nullptr) return;
  archive.findings.push_back(
      finding_at(place, FindingKind::kMismatch, "its archive has no record 'data.pkl'"));
}

void check_chunk(DType dtype, std::span<const std::int64_t> sizes, const ArchivePlace& place,
                 ArchiveCheck& archive) {
  check_has_pickle(place, archive);
  if (!archive.pickle) return;
  const auto report = [&](FindingKind kind, std::string text) {
    archive.findings.push_back(finding_at(place, kind, std::move(text)));
  };
  try {
    const std::optional<TorchTensor> found = torch_tensor_of(*archive.pickle);
    if (!found) {
      report(FindingKind::kMismatch,
             fmt::format("its archive holds a {}, not a tensor", pickle::describe(*archive.pickle)));
    } else if (found->dtype != dtype || !std::ranges::equal(found->shape, sizes)) {
      report(FindingKind::kMismatch,
             fmt::format("its archive holds {} {}, {} {} is expected", torch_name(found->dtype),
                         to_string(found->shape), torch_name(dtype), to_string(sizes)));
    } else if (found->on_meta) {
      if (checked_numel(sizes) != 0)
        report(FindingKind::kHole, fmt::format("its archive holds {}", found->obstacle));
    } else if (!found->storage_key.empty()) {
      check_storage(*found, place, archive);
    }
  } catch (const Error& e) {
    // An Error of another kind is about a tensor that accel does not read: that is not a defect.
    if (e.kind() == ErrorKind::kCorrupt) report(FindingKind::kBroken, e.message());
  }
}

void check_storage(const TorchTensor& tensor, const ArchivePlace& place, ArchiveCheck& archive) {
  const auto broken = corruption_in([&] { (void)storage_of(*archive.zip, tensor); });
  if (broken) archive.findings.push_back(finding_at(place, FindingKind::kMismatch, broken->message()));
}

}  // namespace accel::ckpt
