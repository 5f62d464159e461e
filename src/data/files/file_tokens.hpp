#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/config/config.hpp"
#include "data/files/data_file.hpp"

namespace accel {

/// The largest number that is a token.
inline constexpr std::int64_t kLargestToken = (std::int64_t{1} << 32) - 1;

/// The tokens of one file of training data. Several threads may call the const functions at once.
class FileTokens {
 public:
  explicit FileTokens(DataFile file) : file_(std::move(file)) {}
  virtual ~FileTokens() = default;

  [[nodiscard]] const DataFile& file() const { return file_; }
  /// The number of tokens, which is at least 1.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Copies tokens [begin, begin + out.size()). A number that is not a token, which is from 0 to 2^32 - 1, is
  /// an Error of kind kUsage that names the file, and so is a file that has become too short.
  virtual void read(std::int64_t begin, std::span<std::int64_t> out) const = 0;

 private:
  DataFile file_;
};

/// Opens a file in which all tokens have the same number of bytes: `source.format` is text, tokens or
/// megatron. Throws Error (kUsage) if it does not have the format or has no tokens.
[[nodiscard]] std::unique_ptr<FileTokens> open_flat_tokens(const config::DataSource& source,
                                                           const std::string& path);
/// Opens a file whose lines are lists of tokens (data/formats/jsonl_line.hpp), and reads all of it once.
/// Throws Error (kUsage) for a line that is not one, or if there are no tokens.
[[nodiscard]] std::unique_ptr<FileTokens> open_jsonl_tokens(const std::string& path);

}  // namespace accel
