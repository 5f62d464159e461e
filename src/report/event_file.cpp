#include "report/event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "base/host/host_name.hpp"
#include "base/seconds.hpp"

namespace accel {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

/// The table of CRC-32C (Castagnoli), least significant bit first.
constexpr auto kCrc32c = [] {
  std::array<std::uint32_t, 256> table = {};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82f6'3b78U : 0U);
    table[byte] = crc;
  }
  return table;
}();

/// The sum of a TFRecord: a CRC-32C, rotated and shifted so that the CRC of bytes that hold CRCs is as good.
std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) crc = (crc >> 8U) ^ kCrc32c[(crc ^ static_cast<unsigned char>(c)) & 0xffU];
  return std::rotr(~crc, 15) + 0xa282'ead8U;
}

/// `value` as its bytes, least significant first.
template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// The wire format of Protocol Buffers: a field is its number and its type, then its value.

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7U) bytes += static_cast<char>((value & 0x7fU) | 0x80U);
  return bytes + static_cast<char>(value);
}

enum class WireType : std::uint64_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

std::string field(std::uint64_t number, WireType type, std::string_view value) {
  return varint(number << 3U | static_cast<std::uint64_t>(type)).append(value);
}

std::string integer_field(std::uint64_t number, std::int64_t value) {
  return field(number, WireType::kVarint, varint(static_cast<std::uint64_t>(value)));
}

std::string bytes_field(std::uint64_t number, std::string_view bytes) {
  return field(number, WireType::kLength, varint(bytes.size()).append(bytes));
}

std::string event(double time, std::string_view what) {
  return field(1, WireType::kFixed64, little_endian(std::bit_cast<std::uint64_t>(time))).append(what);
}

std::string scalar(std::string_view tag, double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return bytes_field(1, bytes_field(1, tag) + field(2, WireType::kFixed32, little_endian(bits)));
}

/// The second in the name of a new file in `directory`: `now`, or one behind that of the newest file, for
/// hosts whose clocks differ and for runs that start within a second.
std::int64_t second_of_name(const std::filesystem::path& directory, std::int64_t now) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t second = 0;
    const char* const digits = name.data() + kPrefix.size();
    // TensorBoard's own names have ten digits.
    if (std::from_chars(digits, name.data() + name.size(), second).ptr == digits + 10)
      now = std::max(now, second + 1);
  }
  return now;
}

}  // namespace

void EventFile::open(std::int64_t step) {
  make_directories(directory_);
  const double now = seconds_since_1970();
  path_ = directory_ / fmt::format("{}{:010}.{}.{}.0", kPrefix,
                                   second_of_name(directory_, static_cast<std::int64_t>(now)), host_name(),
                                   ::getpid());
  out_.open(path_, std::ios::binary);
  if (!out_) throw system_error("open", path_.string(), errno);
  append(event(now, bytes_field(3, "brain.Event:2")));
  // SessionLog{status: START}
  append(event(now, integer_field(2, step + 1) + bytes_field(7, integer_field(1, 1))));
}

void EventFile::write(const Metrics& metrics) {
  std::string scalars;
  for (const auto& [name, value] : metrics.items()) {
    const std::string tag = scalar_tag(metrics, name);
    if (!tag.empty()) scalars += scalar(tag, value.get<double>());
  }
  if (scalars.empty()) return;
  append(event(metrics.at("time").get<double>(),
               integer_field(2, metrics.at("step").get<std::int64_t>()) + bytes_field(5, scalars)));
}

void EventFile::append(std::string_view event) {
  const std::string length = little_endian(std::uint64_t{event.size()});
  out_ << length << little_endian(masked_crc(length)) << event << little_endian(masked_crc(event))
       << std::flush;
  if (!out_) throw system_error("write", path_.string(), errno);
}

std::string scalar_tag(const Metrics& metrics, std::string_view name) {
  if (metrics.contains("run_time_s") || metrics.contains("stopped_early")) return {};
  if (!metrics.at(name).is_number() || name == "step" || name == "time" || name == "attempt") return {};
  constexpr std::string_view kEval = "eval_";
  if (name.starts_with(kEval)) return fmt::format("eval/{}", name.substr(kEval.size()));
  return fmt::format("{}/{}", metrics.contains("checkpoint") ? "checkpoint" : "train", name);
}

}  // namespace accel
