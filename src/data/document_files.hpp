#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/data_file.hpp"

namespace accel {

/// Whether the first file that matches the path or glob says in its metadata that it holds documents.
[[nodiscard]] bool holds_documents(const std::string& pattern);

/// The documents of one or more files of `accel-export --tokenize` (docs/formats.md, "Tokenized documents"):
/// their tokens, and which of them count as labels. Only the lengths stay in memory.
class DocumentFiles {
 public:
  /// `pattern` is a path or a glob. Throws Error (kUsage) if nothing matches, a file does not have the format
  /// or no documents, its lengths do not fit its tokens, or two files are of different tokenizers.
  static DocumentFiles open(const std::string& pattern);

  /// The number of documents, which is below 2^32.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  /// The number of tokens of all documents.
  [[nodiscard]] std::int64_t tokens() const { return begins_.back(); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const {
    return begins_[static_cast<std::size_t>(document) + 1] - begins_[static_cast<std::size_t>(document)];
  }
  /// The token that fills samples, as the first file says; 0 if it does not.
  [[nodiscard]] std::int64_t padding() const { return padding_; }
  /// The SHA-256 of the tokenizer, as the files say; empty if they do not.
  [[nodiscard]] std::string tokenizer() const;
  /// Makes read_tokens() refuse tokens that are not below `tokens`. Throws Error (kUsage) if a file says that
  /// it has such a token.
  void set_vocabulary(std::int64_t tokens);
  /// Copies the first out.size() tokens of a document. A token that is negative or not in the vocabulary is
  /// an Error of kind kUsage that names the file, and so is a file that has become too short.
  void read_tokens(std::int64_t document, std::span<std::int64_t> out) const;
  /// Copies which of the first out.size() tokens of a document count as labels, as bytes that are not 0.
  void read_mask(std::int64_t document, std::span<std::byte> out) const;
  /// Returns "data file 'FILE', document I", where I counts the documents of the file from 0.
  [[nodiscard]] std::string position(std::int64_t document) const;
  [[nodiscard]] const DataFile& file_of(std::int64_t document) const { return part_of(document).file; }
  /// Makes DataFile::change() of every file compare with its present state.
  void accept_changes() const;

 private:
  struct Part {
    DataFile file;
    std::int64_t first_document = 0;
    std::int64_t documents = 0;
    std::uint64_t tokens_offset = 0;  ///< Where the tokens begin in the file.
    std::uint64_t mask_offset = 0;
    std::size_t token_bytes = 0;
    bool is_signed = false;
    std::map<std::string, std::string> metadata;
  };

  void add(const std::string& path);
  void add_lengths(const Part& part, std::uint64_t offset, std::int64_t tokens);
  [[nodiscard]] const Part& part_of(std::int64_t document) const;

  std::vector<Part> parts_;
  std::vector<std::int64_t> begins_{0};  ///< The first token of each document, and the end of the last.
  std::int64_t padding_ = 0;
  std::optional<std::int64_t> vocabulary_;
};

}  // namespace accel
