#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "data/files/file_tokens.hpp"

namespace accel {

/// The tokens of one or more files as one stream. Each file has the same format.
class TokenStream {
 public:
  /// `source.path` is a path or a glob, whose matches are concatenated in sorted order. No match, an empty
  /// file and a wrong format are Errors of kind kUsage.
  static TokenStream open(const config::DataSource& source);

  /// The number of tokens.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The number of windows of `length` + 1 tokens that start every `length` tokens. An incomplete last one
  /// does not count.
  [[nodiscard]] std::int64_t windows(std::int64_t length) const {
    return size_ <= 0 ? 0 : (size_ - 1) / length;
  }
  /// Makes read() refuse tokens that are not below `tokens`.
  void set_vocabulary(std::int64_t tokens) { vocabulary_ = tokens; }
  /// Copies tokens [begin, begin + out.size()) of the stream. A token that is not in the vocabulary, or not
  /// from 0 to 2^32 - 1, is an Error of kind kUsage that names the file, the position in it, the token and
  /// the size of the vocabulary. A file that has become too short is one, too.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;
  /// The positions behind the last token of each file.
  [[nodiscard]] std::vector<std::int64_t> file_ends() const;
  /// The files of which read() takes tokens for `count` tokens from `begin` on.
  [[nodiscard]] std::vector<const DataFile*> files_of(std::int64_t begin, std::int64_t count) const;
  /// Makes DataFile::change() of every file compare with its present state.
  void accept_changes() const;

 private:
  struct Part {
    std::unique_ptr<FileTokens> tokens;
    std::int64_t begin = 0;  ///< The position of the first token in the stream.
  };

  [[nodiscard]] std::vector<Part>::const_iterator part_of(std::int64_t position) const;
  void require_known(const Part& part, std::int64_t first, std::span<const std::int64_t> tokens) const;

  std::vector<Part> parts_;
  std::int64_t size_ = 0;
  std::optional<std::int64_t> vocabulary_;
};

}  // namespace accel
