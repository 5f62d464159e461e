#include "ckpt/torch_save.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/error.hpp"
#include "ckpt/crc32.hpp"

namespace accel::ckpt {
namespace {

struct Constant {
  std::string_view name;
  std::string_view data;
};

// In the order of torch.save: these, the storages, `version`, the id.
constexpr std::array<Constant, 3> kConstants = {{
    {".format_version", "1"},
    {".storage_alignment", "64"},
    {"byteorder", "little"},
}};
constexpr std::string_view kVersion = "3\n";
constexpr std::size_t kIdDigits = 40;
constexpr std::size_t kFirstStorage = 1 + kConstants.size();

ZipLayout make_layout(std::uint64_t pickle_bytes, std::span<const std::uint64_t> storage_bytes,
                      std::string_view root) {
  std::vector<ZipRecord> records;
  const auto add = [&](std::string_view name, std::uint64_t size) {
    records.push_back({fmt::format("{}/{}", root, name), size});
  };
  add("data.pkl", pickle_bytes);
  for (const Constant& constant : kConstants) add(constant.name, constant.data.size());
  for (std::size_t i = 0; i < storage_bytes.size(); ++i) add(fmt::format("data/{}", i), storage_bytes[i]);
  add("version", kVersion.size());
  add(".data/serialization_id", kIdDigits);
  return ZipLayout(std::move(records));
}

// 20 digits for the names, 20 for the contents, as torch has it; nobody compares them with anything, so any
// good hash does.
std::string serialization_id(const ZipLayout& layout, std::span<const std::uint32_t> crcs) {
  constexpr std::uint64_t kFnvStart = 0xcbf29ce484222325U;
  constexpr std::uint64_t kFnvPrime = 0x100000001b3U;
  std::uint64_t names = kFnvStart;
  for (const ZipRecord& record : layout.records()) {
    for (const char c : record.name) names = (names ^ static_cast<unsigned char>(c)) * kFnvPrime;
  }
  std::uint64_t contents = kFnvStart;
  for (const std::uint32_t crc : crcs) contents = (contents ^ crc) * kFnvPrime;
  return fmt::format("{:020}{:020}", names, contents);
}

}  // namespace

TorchArchive::TorchArchive(std::string pickle, std::span<const std::uint64_t> storage_bytes,
                           std::string_view root)
    : layout_(make_layout(pickle.size(), storage_bytes, root)),
      pickle_(std::move(pickle)),
      storages_(storage_bytes.size()) {}

std::uint64_t TorchArchive::storage_offset(std::size_t storage) const {
  return layout_.records().at(kFirstStorage + storage).data_offset;
}

void TorchArchive::write(SummedFile& out, const StorageSource& source) const {
  std::vector<std::uint32_t> crcs;
  const auto put = [&](std::span<const std::byte> data) {
    const std::size_t i = crcs.size();
    const ZipRecord& record = layout_.records().at(i);
    if (data.size() != record.size) {
      throw Error(ErrorKind::kFailure, fmt::format("record '{}' was planned with {} bytes, but {} were given",
                                                   record.name, record.size, data.size()));
    }
    crcs.push_back(crc32(data));
    out.append(layout_.header(i));
    out.append(data, crcs.back());
    out.append(layout_.descriptor(i, crcs.back()));
  };
  const auto put_text = [&](std::string_view text) { put(std::as_bytes(std::span(text))); };

  put_text(pickle_);
  for (const Constant& constant : kConstants) put_text(constant.data);
  for (std::size_t i = 0; i < storages_; ++i) put(source(i));
  put_text(kVersion);
  put_text(serialization_id(layout_, crcs));
  out.append(layout_.directory(crcs));
}

}  // namespace accel::ckpt
