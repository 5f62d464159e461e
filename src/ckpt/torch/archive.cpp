#include "ckpt/torch/archive.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/error.hpp"
#include "ckpt/io/crc32.hpp"

namespace accel::ckpt {
namespace {

struct Constant {
  std::string_view name;
  std::string_view data;
};

// The order of torch.save: these records, the storages, `version`, the id.
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

// 20 digits for the names and 20 for the contents, as in torch. Nothing compares the id, so any good hash
// will do. This one does not depend on the values of tensors, so the whole archive can be planned without
// them.
std::string serialization_id(const ZipLayout& layout, std::string_view pickle) {
  constexpr std::uint64_t kFnvStart = 0xcbf29ce484222325U;
  constexpr std::uint64_t kFnvPrime = 0x100000001b3U;
  std::uint64_t names = kFnvStart;
  std::uint64_t contents = kFnvStart;
  for (const ZipRecord& record : layout.records()) {
    for (const char c : record.name) names = (names ^ static_cast<unsigned char>(c)) * kFnvPrime;
    contents = (contents ^ record.size) * kFnvPrime;
  }
  contents = (contents ^ crc32(std::as_bytes(std::span(pickle)))) * kFnvPrime;
  return fmt::format("{:020}{:020}", names, contents);
}

}  // namespace

TorchArchive::TorchArchive(std::string pickle, std::span<const std::uint64_t> storage_bytes,
                           std::string_view root)
    : layout_(make_layout(pickle.size(), storage_bytes, root)),
      pickle_(std::move(pickle)),
      storages_(storage_bytes.size()),
      id_(serialization_id(layout_, pickle_)) {}

std::uint64_t TorchArchive::storage_offset(std::size_t storage) const {
  return layout_.records().at(kFirstStorage + storage).data_offset;
}

std::optional<std::size_t> TorchArchive::storage_of(std::size_t record) const {
  if (record < kFirstStorage || record >= kFirstStorage + storages_) return std::nullopt;
  return record - kFirstStorage;
}

std::string_view TorchArchive::text_of(std::size_t record) const {
  if (record == 0) return pickle_;
  if (record < kFirstStorage) return kConstants.at(record - 1).data;
  return record == kFirstStorage + storages_ ? kVersion : std::string_view(id_);
}

void TorchArchive::write(SummedFile& out, const StorageSource& source) const {
  std::vector<std::uint32_t> crcs;
  for (std::size_t i = 0; i < layout_.records().size(); ++i) {
    const ZipRecord& record = layout_.records()[i];
    const std::optional<std::size_t> storage = storage_of(i);
    out.append(layout_.header(i));
    crcs.push_back(0);
    for (std::uint64_t given = 0; given < record.size;) {
      const std::span<const std::byte> data =
          storage ? source(*storage) : std::as_bytes(std::span(text_of(i)));
      if (data.empty() || data.size() > record.size - given) {
        throw Error(ErrorKind::kFailure,
                    fmt::format("record '{}' was planned with {} bytes, but {} were given", record.name,
                                record.size, given + data.size()));
      }
      const std::uint32_t crc = crc32(data);
      out.append(data, crc);
      crcs.back() = crc32_combine(crcs.back(), crc, data.size());
      given += data.size();
    }
    out.append(layout_.descriptor(i, crcs.back()));
  }
  out.append(layout_.directory(crcs));
}

}  // namespace accel::ckpt
