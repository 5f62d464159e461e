#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/config/config.hpp"

namespace accel {

class SampleSource;

/// A format of training data: what the configuration has to say of it, and how its files are opened.
struct DataFormat {
  std::string_view name;     ///< The value of `format` in training.data.train and training.data.eval.
  std::string_view files;    ///< What the files are, for the help of `format`.
  std::string_view note;     ///< The comment that a first configuration has.
  std::string_view example;  ///< The path of the data in a first configuration.
  std::array<std::string_view, 2> extensions{};  ///< The names of files from which the format is guessed.
  /// What a sample is. If it is empty, a sample is as many tokens as the key `sequence_length` says.
  std::string_view sample{};
  std::int64_t tokens = 0;  ///< How many different tokens there are; 0 for any number.
  bool has_dtype = false;   ///< The key `dtype` may say how the files store tokens.
  /// The files name the fields and hold the labels. Without it there are tokens, from which both are made.
  bool has_own_fields = false;
  /// Throws Error (kUsage) if no file matches, or one does not have the format.
  std::unique_ptr<SampleSource> (*open)(const config::DataSource& source) = nullptr;
};

[[nodiscard]] std::unique_ptr<SampleSource> open_token_windows(const config::DataSource& source);
[[nodiscard]] std::unique_ptr<SampleSource> open_tensor_table(const config::DataSource& source);

/// The table of formats. The first row is text, which `accel config` takes for files whose extension no row
/// has.
inline constexpr auto kDataFormats = std::to_array<DataFormat>({
    {.name = "text",
     .files = "bytes of text",
     .note = "each byte is a token, from 0 to 255.",
     .example = "data.txt",
     .tokens = 256,
     .open = open_token_windows},
    {.name = "tokens",
     .files = "tokens",
     .note = ".npy of whole numbers, .bin with llm.c's header, or with dtype: uint16 without one.",
     .example = "tokens.npy",
     .extensions = {".npy", ".bin"},
     .has_dtype = true,
     .open = open_token_windows},
    {.name = "tensors",
     .files = "safetensors whose rows are samples",
     .note = "a safetensors file with the fields above and the targets. Row i of each tensor is sample i.",
     .example = "train.safetensors",
     .extensions = {".safetensors"},
     .sample = "a row of the file's tensors",
     .has_own_fields = true,
     .open = open_tensor_table},
});

/// The row of a format. Another name is an Error of kind kUsage.
[[nodiscard]] const DataFormat& data_format(std::string_view name);

/// A model that knows far more tokens than the format has was made for those of a tokenizer: an Error of kind
/// kUsage, since such a model would train on bytes without any other error. Special tokens and padding are
/// not far more.
void require_vocabulary(const DataFormat& format, std::int64_t vocabulary);

/// A text that is put together when it is compiled.
class FormatText {
 public:
  constexpr FormatText& add(std::string_view text) {
    for (const char c : text) chars_.at(size_++) = c;
    return *this;
  }
  constexpr operator std::string_view() const {
    return {chars_.data(), size_};
  }  // NOLINT: The view is of it.

 private:
  std::array<char, 256> chars_{};
  std::size_t size_ = 0;
};

/// Lists `part` of the formats for which `holds`, with `between` between two of them and `last` before the
/// last one.
constexpr FormatText formats_text(std::string_view DataFormat::*part, bool (*holds)(const DataFormat&),
                                  std::string_view between, std::string_view last) {
  std::size_t left = 0;
  for (const DataFormat& format : kDataFormats) left += holds(format) ? 1 : 0;
  FormatText text;
  for (bool is_first = true; const DataFormat& format : kDataFormats) {
    if (!holds(format)) continue;
    if (!is_first) text.add(left == 1 ? last : between);
    text.add(format.*part);
    is_first = false;
    --left;
  }
  return text;
}

constexpr bool is_any_format(const DataFormat&) { return true; }
constexpr bool has_dtype(const DataFormat& format) { return format.has_dtype; }
constexpr bool has_own_fields(const DataFormat& format) { return format.has_own_fields; }
constexpr bool has_token_fields(const DataFormat& format) { return !format.has_own_fields; }
constexpr bool has_own_samples(const DataFormat& format) { return !format.sample.empty(); }

}  // namespace accel
