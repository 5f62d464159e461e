#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ckpt/pickle/opcodes.hpp"

namespace accel::ckpt::pickle {

/// The argument of an opcode, by its place in the input.
struct Argument {
  std::size_t begin = 0;  ///< Behind the length, if it has one.
  std::size_t end = 0;    ///< Where the next opcode is.
};

/// The argument of the opcode at `position`, which may be anything: throws Error (kCorrupt) for an unknown
/// opcode, and if the argument does not end within `bytes`. For GLOBAL, two lines.
[[nodiscard]] Argument argument_at(std::span<const std::byte> bytes, std::size_t position);

/// The little-endian number of those bytes, at most 8.
[[nodiscard]] std::uint64_t number_in(std::span<const std::byte> bytes, Argument argument);
[[nodiscard]] std::string_view text_in(std::span<const std::byte> bytes, Argument argument);

/// What a pickle will need: at least about so many
struct ScanCounts {
  std::size_t nodes = 0;   ///< containers and calls,
  std::size_t atoms = 0;   ///< literals that do not fit a reference,
  std::size_t values = 0;  ///< and values that may become part of a container.
};

/// What is found without building anything.
struct Scan {
  ScanCounts counts;
  std::vector<std::uint64_t> fetched;  ///< A bit for every memo index that is ever fetched.
};

/// Goes over the opcodes up to STOP. Throws Error (kCorrupt) for an unknown opcode, an argument or a pickle
/// that ends early, and a memo index greater than the pickle is long.
[[nodiscard]] Scan scan(std::span<const std::byte> bytes);

/// "byte 7 of the pickle (opcode 0x2e)": where an error was found.
[[nodiscard]] std::string place_of(std::span<const std::byte> bytes, std::size_t position);

}  // namespace accel::ckpt::pickle
