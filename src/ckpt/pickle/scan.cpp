#include "ckpt/pickle/scan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"

namespace accel::ckpt::pickle {
namespace {

// The form of an opcode's argument.
enum class Form : std::uint8_t {
  kUnknown,
  kNothing,
  kFixed,  // It has `width` bytes.
  kSized,  // It has a length of `width` bytes, then that many bytes.
  kTwoLines
};

enum class Makes : std::uint8_t { kNothing, kValue, kAtom, kNode };

struct OpInfo {
  Form form = Form::kUnknown;
  std::uint8_t width = 0;
  Makes makes = Makes::kNothing;
};

constexpr std::array<OpInfo, 256> op_table() {
  std::array<OpInfo, 256> table{};
  const auto set = [&](std::initializer_list<Op> ops, OpInfo info) {
    for (const Op op : ops) table[static_cast<std::uint8_t>(op)] = info;
  };
  using enum Op;
  set({kMark, kStop, kPop, kPopMark, kAppend, kAppends, kSetItem, kSetItems, kAddItems, kBuild, kMemoize},
      {Form::kNothing, 0, Makes::kNothing});
  set({kNone, kNewTrue, kNewFalse, kDup, kEmptyTuple}, {Form::kNothing, 0, Makes::kValue});
  set({kReduce, kNewObj, kNewObjEx, kStackGlobal, kBinPersId, kEmptyList, kEmptyDict, kEmptySet, kList, kDict,
       kFrozenSet, kTuple, kTuple1, kTuple2, kTuple3},
      {Form::kNothing, 0, Makes::kNode});
  set({kProto, kBinPut}, {Form::kFixed, 1, Makes::kNothing});
  set({kLongBinPut}, {Form::kFixed, 4, Makes::kNothing});
  set({kFrame}, {Form::kFixed, 8, Makes::kNothing});
  set({kBinGet, kBinInt1}, {Form::kFixed, 1, Makes::kValue});
  set({kBinInt2}, {Form::kFixed, 2, Makes::kValue});
  set({kLongBinGet}, {Form::kFixed, 4, Makes::kValue});
  set({kBinInt}, {Form::kFixed, 4, Makes::kAtom});
  set({kBinFloat}, {Form::kFixed, 8, Makes::kAtom});
  set({kLong1, kShortBinUnicode, kShortBinString, kShortBinBytes}, {Form::kSized, 1, Makes::kAtom});
  set({kLong4, kBinUnicode, kBinString, kBinBytes}, {Form::kSized, 4, Makes::kAtom});
  set({kBinUnicode8, kBinBytes8, kByteArray8}, {Form::kSized, 8, Makes::kAtom});
  set({kGlobal}, {Form::kTwoLines, 0, Makes::kAtom});
  return table;
}

constexpr std::array<OpInfo, 256> kOps = op_table();

[[noreturn]] void reject_end() { throw_corrupt("the pickle ends early"); }

template <class T>
std::uint64_t load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

std::uint64_t number(std::span<const std::byte> bytes, std::size_t at, std::size_t width) {
  static_assert(std::endian::native == std::endian::little);
  switch (width) {
    case 1:
      return load<std::uint8_t>(bytes.data() + at);
    case 2:
      return load<std::uint16_t>(bytes.data() + at);
    case 4:
      return load<std::uint32_t>(bytes.data() + at);
    default:
      return load<std::uint64_t>(bytes.data() + at);
  }
}

OpInfo info_at(std::span<const std::byte> bytes, std::size_t position) {
  return kOps[std::to_integer<std::uint8_t>(bytes[position])];
}

Argument lines_at(std::span<const std::byte> bytes, std::size_t begin) {
  std::size_t end = begin;
  for (int line = 0; line < 2; ++line) {
    while (end < bytes.size() && bytes[end] != std::byte{'\n'}) ++end;
    if (end == bytes.size()) reject_end();
    ++end;
  }
  return {begin, end};
}

Argument argument_of(std::span<const std::byte> bytes, std::size_t position, OpInfo info) {
  const std::size_t begin = position + 1;
  if (info.form == Form::kNothing) return {begin, begin};
  if (info.form == Form::kUnknown) throw_corrupt("unknown opcode");
  if (info.form == Form::kTwoLines) return lines_at(bytes, begin);
  if (info.width > bytes.size() - begin) reject_end();
  const std::size_t behind = begin + info.width;
  if (info.form == Form::kFixed) return {begin, behind};
  const std::uint64_t length = number(bytes, begin, info.width);
  if (length > bytes.size() - behind) reject_end();
  return {behind, behind + length};
}

// The bytes of each opcode with its argument, or 0 if they vary or the scan needs the argument.
constexpr std::array<std::uint8_t, 256> length_table() {
  std::array<std::uint8_t, 256> lengths{};
  for (std::size_t op = 0; op < lengths.size(); ++op) {
    const bool plain = kOps[op].form == Form::kNothing || kOps[op].form == Form::kFixed;
    lengths[op] = plain ? static_cast<std::uint8_t>(1 + kOps[op].width) : 0;
  }
  for (const Op op : {Op::kStop, Op::kBinGet, Op::kLongBinGet}) lengths[static_cast<std::uint8_t>(op)] = 0;
  return lengths;
}

constexpr std::array<std::uint8_t, 256> kLengths = length_table();

class Scanner {
 public:
  explicit Scanner(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // Scans all opcodes up to STOP.
  void run() {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // Signals are noticed in between.
    try {
      while (!stopped_) {
        check_interrupted();
        run_piece(std::min(bytes_.size(), at_ + kPieceBytes));
      }
    } catch (Error& e) {
      if (at_ < bytes_.size()) e.add_context(place_of(bytes_, at_));
      throw;
    }
  }

  Scan result() { return {counts(), std::move(fetched_)}; }

 private:
  void run_piece(std::size_t end) {
    if (at_ >= bytes_.size()) reject_end();
    while (at_ < end) {
      const auto code = std::to_integer<std::uint8_t>(bytes_[at_]);
      ++seen_[code];
      if (kLengths[code] != 0) {
        at_ += kLengths[code];
        continue;
      }
      const Argument argument = argument_of(bytes_, at_, kOps[code]);
      const auto op = static_cast<Op>(code);
      if (op == Op::kStop) {
        stopped_ = true;
        return;
      }
      if (op == Op::kBinGet || op == Op::kLongBinGet) fetch(number_in(bytes_, argument));
      at_ = argument.end;
    }
  }

  // Memo indices count up, so none can be greater than the number of bytes.
  void fetch(std::uint64_t index) {
    if (index >= bytes_.size()) throw_corrupt(fmt::format("memo {} was never set", index));
    if (index / 64 >= fetched_.size()) fetched_.resize(index / 64 + 1);
    fetched_[index / 64] |= std::uint64_t{1} << index % 64;
  }

  [[nodiscard]] ScanCounts counts() const {
    ScanCounts counts;
    for (std::size_t op = 0; op < seen_.size(); ++op) {
      counts.values += kOps[op].makes != Makes::kNothing ? seen_[op] : 0;
      counts.atoms += kOps[op].makes == Makes::kAtom ? seen_[op] : 0;
      counts.nodes += kOps[op].makes == Makes::kNode ? seen_[op] : 0;
    }
    return counts;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool stopped_ = false;
  std::array<std::uint64_t, 256> seen_{};
  std::vector<std::uint64_t> fetched_;
};

}  // namespace

Argument argument_at(std::span<const std::byte> bytes, std::size_t position) {
  if (position >= bytes.size()) reject_end();
  return argument_of(bytes, position, info_at(bytes, position));
}

std::optional<std::size_t> length_of(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    check_interrupted();
    const OpInfo info = info_at(bytes, at);
    if (info.form == Form::kUnknown) throw_corrupt(place_of(bytes, at) + ": unknown opcode");
    std::size_t end = 0;
    try {
      end = argument_of(bytes, at, info).end;
    } catch (const Error&) {
      return std::nullopt;  // The argument goes on behind the bytes.
    }
    if (static_cast<Op>(std::to_integer<std::uint8_t>(bytes[at])) == Op::kStop) return end;
    at = end;
  }
  return std::nullopt;
}

std::uint64_t number_in(std::span<const std::byte> bytes, Argument argument) {
  return number(bytes, argument.begin, argument.end - argument.begin);
}

std::string_view text_in(std::span<const std::byte> bytes, Argument argument) {
  return {reinterpret_cast<const char*>(bytes.data()) + argument.begin, argument.end - argument.begin};
}

Scan scan(std::span<const std::byte> bytes) {
  Scanner scanner(bytes);
  scanner.run();
  return scanner.result();
}

std::string place_of(std::span<const std::byte> bytes, std::size_t position) {
  return fmt::format("byte {} of the pickle (opcode 0x{:02x})", position,
                     std::to_integer<unsigned>(bytes[position]));
}

}  // namespace accel::ckpt::pickle
