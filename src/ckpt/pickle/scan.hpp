#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/pickle/opcodes.hpp"

namespace accel::ckpt::pickle {

/// The place of an opcode's argument in the input.
struct Argument {
  std::size_t begin = 0;  ///< The first byte, behind the length if there is one.
  std::size_t end = 0;    ///< The byte of the next opcode.
};

/// The argument of the opcode at `position`. That of GLOBAL is two lines. Throws Error (kCorrupt) for an
/// unknown opcode, and if the argument does not end within `bytes`.
[[nodiscard]] Argument argument_at(std::span<const std::byte> bytes, std::size_t position);

/// The length of the pickle at the start of `bytes`, its STOP included; nothing if it goes on behind them.
/// Throws Error (kCorrupt) for an unknown opcode.
[[nodiscard]] std::optional<std::size_t> length_of(std::span<const std::byte> bytes);

/// The little-endian number in an argument of at most 8 bytes.
[[nodiscard]] std::uint64_t number_in(std::span<const std::byte> bytes, Argument argument);
[[nodiscard]] std::string_view text_in(std::span<const std::byte> bytes, Argument argument);

/// Approximate lengths of the arrays of a pickle's graph.
struct ScanCounts {
  std::size_t nodes = 0;   ///< Containers and calls.
  std::size_t atoms = 0;   ///< Literals that do not fit a reference.
  std::size_t values = 0;  ///< Values that may become part of a container.
};

/// What is known of a pickle before it is run.
struct Scan {
  ScanCounts counts;
  std::vector<std::uint64_t> fetched;  ///< A bit for every memo index that is ever fetched.
};

/// Goes over the opcodes up to STOP. Throws Error (kCorrupt) for an unknown opcode, an argument or a pickle
/// that ends early, and a memo index greater than the pickle is long.
[[nodiscard]] Scan scan(std::span<const std::byte> bytes);

/// The place of an error, such as "byte 7 of the pickle (opcode 0x2e)".
[[nodiscard]] std::string place_of(std::span<const std::byte> bytes, std::size_t position);

}  // namespace accel::ckpt::pickle
