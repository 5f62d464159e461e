#include "ckpt/torch/legacy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/metadata_limit.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/pickle/reader.hpp"
#include "ckpt/pickle/scan.hpp"
#include "ckpt/torch/tensor.hpp"

namespace accel::ckpt {
namespace {

using pickle::Value;

// The opcode LONG1 with the number 0x1950a86a20f9469cfc6c. It follows the protocol and, from protocol 4 on, a
// frame.
constexpr std::array<unsigned char, 12> kMagic = {0x8a, 10,   0x6c, 0xfc, 0x9c, 0x46,
                                                  0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
constexpr std::uint64_t kProtocolBytes = 2;
constexpr std::uint64_t kFrameBytes = 9;
constexpr std::int64_t kProtocol = 1001;
constexpr std::uint64_t kTarMagicAt = 257;
constexpr std::string_view kTarMagic = "ustar";
constexpr std::uint64_t kFirstPieceBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kCountBytes = 8;

bool has_at(const FileWindow& window, std::uint64_t at, std::string_view text) {
  return window.size() >= at + text.size() && text_of(window.read(at, text.size())) == text;
}

// Reads the pickles of a file, one after another.
class PickleRow {
 public:
  explicit PickleRow(const FileWindow& window) : window_(window) {}

  // The bytes of the next pickle. Nothing says how long it is, so more and more is read until it ends.
  std::vector<std::byte> next() {
    const std::uint64_t left = window_.size() - at_;
    for (std::uint64_t size = std::min(left, kFirstPieceBytes);; size = std::min(left, 2 * size)) {
      check_metadata_bytes("a pickle of the file", size);
      std::vector<std::byte> bytes = window_.read(at_, size);
      if (const std::optional<std::size_t> length = pickle::length_of(bytes)) {
        bytes.resize(*length);
        at_ += *length;
        return bytes;
      }
      if (size == left) {
        throw Error(ErrorKind::kCorrupt, fmt::format("the pickle at byte {} does not end in the file", at_))
            .hint("the file may be truncated");
      }
    }
  }

  [[nodiscard]] std::uint64_t at() const { return at_; }

 private:
  const FileWindow& window_;
  std::uint64_t at_ = 0;
};

using References = std::map<std::string, TorchStorage>;

// Adds the storages that a value refers to. Other references are the sources of classes.
void add_references(const Value& value, References& references) {
  check_interrupted();
  (void)pickle::any_part(value, [&](const Value& part) {
    add_references(part, references);
    return false;
  });
  std::optional<TorchStorage> storage = torch_storage_of(value);
  if (!storage) return;
  const auto [known, fresh] = references.emplace(storage->key, *storage);
  if (fresh || (known->second.item_bytes == storage->item_bytes && known->second.bytes == storage->bytes))
    return;
  throw_corrupt(fmt::format("its pickle gives storage '{}' two sizes", storage->key));
}

const TorchStorage& reference_to(const Value& key, const References& references) {
  const auto* text = key.get<std::string>();
  const auto found = text != nullptr ? references.find(*text) : references.end();
  if (found == references.end())
    throw_corrupt(
        fmt::format("it holds a storage {} that its pickle does not refer to", pickle::describe(key)));
  if (found->second.item_bytes == 0)
    throw_corrupt(fmt::format("the elements of storage '{}' are of an unknown type", *text));
  return found->second;
}

LegacyTorch::Storage storage_at(const FileWindow& window, std::uint64_t at, const TorchStorage& reference) {
  const auto cut_off = [&] {
    return Error(ErrorKind::kCorrupt,
                 fmt::format("the file ends at byte {}, within storage '{}'", window.size(), reference.key))
        .hint("the file may be truncated");
  };
  if (window.size() - at < kCountBytes) throw cut_off();
  const std::uint64_t count = get_uint(window.read(at, kCountBytes), 0, kCountBytes);
  const std::uint64_t bytes = checked_mul(count, reference.item_bytes);
  if (bytes != reference.bytes) {
    throw_corrupt(
        fmt::format("storage '{}' has {} bytes, its pickle says {}", reference.key, bytes, reference.bytes));
  }
  if (bytes > window.size() - at - kCountBytes) throw cut_off();
  return {at + kCountBytes, bytes};
}

}  // namespace

bool looks_like_legacy_torch(const FileWindow& window) {
  constexpr std::string_view kFirst = "\x80";
  constexpr std::string_view kFrame = "\x95";
  if (!has_at(window, 0, kFirst) || window.size() < kProtocolBytes) return false;
  const auto protocol = std::to_integer<unsigned>(window.read(1, 1).front());
  const bool has_frame = protocol >= 4 && has_at(window, kProtocolBytes, kFrame);
  return protocol >= 2 && protocol <= 5 &&
         has_at(window, kProtocolBytes + (has_frame ? kFrameBytes : 0),
                text_of(std::as_bytes(std::span(kMagic))));
}

bool looks_like_tar(const FileWindow& window) { return has_at(window, kTarMagicAt, kTarMagic); }

LegacyTorch read_legacy_torch(const FileWindow& window) {
  LegacyTorch file;
  PickleRow row(window);
  (void)row.next();  // The magic number.
  const Value protocol = pickle::parse(row.next());
  const auto* number = protocol.get<std::int64_t>();
  if (number == nullptr || *number != kProtocol)
    throw_corrupt(fmt::format("its protocol is {}; {} is expected", pickle::describe(protocol), kProtocol));
  (void)row.next();  // What the machine was like. Storages are little-endian on every machine.
  file.pickle = row.next();
  const Value keys = pickle::parse(row.next());
  const pickle::Values* list = pickle::sequence_of(keys);
  if (list == nullptr) throw_corrupt(fmt::format("its list of storages is {}", pickle::describe(keys)));

  References references;
  add_references(pickle::parse(file.pickle), references);
  file.bytes = row.at();
  for (const Value& key : *list) {
    check_interrupted();
    const TorchStorage& reference = reference_to(key, references);
    const LegacyTorch::Storage storage = storage_at(window, file.bytes, reference);
    if (!file.storages.emplace(reference.key, storage).second)
      throw_corrupt(fmt::format("storage '{}' is there twice", reference.key));
    file.bytes = storage.offset + storage.bytes;
  }
  for (const auto& [key, reference] : references) {
    if (!reference.on_meta && !file.storages.contains(key))
      throw_corrupt(fmt::format("storage '{}' of its pickle is not in the file", key));
  }
  return file;
}

}  // namespace accel::ckpt
