#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/interrupt.hpp"

namespace accel {

/// A place in a text that is being parsed; every 64 kB it notices a signal (base/interrupt.hpp), as a parser
/// knows nothing of signals.
class InterruptibleText {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit InterruptibleText(const char* at) : at_(at) {}

  reference operator*() const { return *at_; }
  InterruptibleText& operator++() {
    if ((reinterpret_cast<std::uintptr_t>(++at_) & 0xffffU) == 0) check_interrupted();
    return *this;
  }
  friend bool operator==(const InterruptibleText&, const InterruptibleText&) = default;

 private:
  const char* at_;
};

/// Throws Error (kCorrupt) if what a parser would build of `text`, a JSON document, takes more than
/// metadata_limit(), or nests more than 1000 deep. Both are found beforehand, as nothing stops the parser.
void check_json_bytes(std::string_view text);

/// `text` as a document, within metadata_limit(). What is not JSON gives a discarded value, or throws
/// json::exception. A byte order mark and NULs are not JSON, whatever the parser does with them: parse_json()
/// throws Error (kCorrupt) for them.
[[nodiscard]] nlohmann::json parse_json(std::string_view text);
[[nodiscard]] nlohmann::json parse_json_or_discard(std::string_view text);

/// The document in a file, read within metadata_limit(), or a discarded value.
[[nodiscard]] nlohmann::json read_json_file(const std::filesystem::path& path);

/// Calls `use` with the document in a file of at most `limit_bytes`. What is not JSON, and what `use` does
/// not find in it, is an Error of kind kCorrupt. Every Error names the file.
void use_json_file(const std::filesystem::path& path, std::uint64_t limit_bytes,
                   const std::function<void(const nlohmann::json&)>& use);

}  // namespace accel
