#include "ckpt/torch/file.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "ckpt/pickle/reader.hpp"

namespace accel::ckpt {
namespace {

const ZipEntry& require_record(const ZipIndex& zip, std::string_view name) {
  const ZipEntry* entry = zip.find(name);
  if (entry == nullptr) throw Error(ErrorKind::kCorrupt, fmt::format("its archive has no record '{}'", name));
  return *entry;
}

std::variant<ZipIndex, LegacyTorch> contents_of(const FileWindow& window) {
  if (looks_like_legacy_torch(window)) return read_legacy_torch(window);
  return ZipIndex(window);
}

}  // namespace

const ZipEntry& storage_of(const ZipIndex& zip, const TorchTensor& tensor) {
  const std::string name = "data/" + tensor.storage_key;
  const ZipEntry& storage = require_record(zip, name);
  if (storage.size < tensor.storage_bytes) {
    throw Error(ErrorKind::kCorrupt, fmt::format("record '{}' has {} bytes, its pickle says {}", name,
                                                 storage.size, tensor.storage_bytes));
  }
  return storage;
}

TorchFile::TorchFile(FileWindow window) : window_(std::move(window)), contents_(contents_of(window_)) {}

const ZipIndex& TorchFile::zip() const {
  if (const auto* zip = std::get_if<ZipIndex>(&contents_)) return *zip;
  throw Error(ErrorKind::kFailure, "it is a file of torch.save before torch 1.6, not an archive");
}

std::vector<std::byte> TorchFile::read_pickle_bytes() const {
  if (const auto* legacy = std::get_if<LegacyTorch>(&contents_)) return legacy->pickle;
  if (const ZipEntry* order = zip().find("byteorder")) {
    if (read_text_record(window_, *order, 16) != "little") {
      throw Error(ErrorKind::kFailure, "it was written on a big-endian machine, which accel does not read")
          .hint("load it with torch on this machine and save it again");
    }
  }
  return read_record(window_, require_record(zip(), "data.pkl"));
}

pickle::Value TorchFile::read_pickle() const { return pickle::parse(read_pickle_bytes()); }

std::uint64_t TorchFile::offset_of(const TorchTensor& tensor) const {
  if (!tensor.obstacle.empty()) {
    throw Error(ErrorKind::kFailure, fmt::format("it is {}, which accel does not read", tensor.obstacle))
        .hint("save it as a plain tensor, or leave it out");
  }
  const auto skipped =
      checked_mul(static_cast<std::uint64_t>(tensor.storage_offset), item_bytes(tensor.dtype));
  if (const auto* legacy = std::get_if<LegacyTorch>(&contents_)) {
    const auto found = legacy->storages.find(tensor.storage_key);
    if (found == legacy->storages.end())
      throw_corrupt(fmt::format("it has no storage '{}'", tensor.storage_key));
    return checked_add(found->second.offset, skipped);
  }
  const ZipEntry& storage = storage_of(zip(), tensor);
  return checked_add(data_offset_of(window_, storage), skipped);
}

}  // namespace accel::ckpt
