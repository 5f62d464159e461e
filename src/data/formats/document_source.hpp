#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/files/data_file.hpp"

namespace accel {

/// A label that no loss counts.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// Documents of training data: their tokens, and which of them count as labels. Only the lengths stay in
/// memory. Several threads may call the const functions at once, except accept_changes().
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;

  /// The number of documents, which is below 2^32.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  /// The number of tokens of all documents.
  [[nodiscard]] std::int64_t tokens() const { return begins_.back(); }
  /// The number of tokens of a document, which is at least 1.
  [[nodiscard]] std::int64_t length(std::int64_t document) const {
    return begins_[static_cast<std::size_t>(document) + 1] - begins_[static_cast<std::size_t>(document)];
  }
  /// The token that fills samples; 0 if the files do not say it.
  [[nodiscard]] virtual std::int64_t padding() const { return 0; }
  /// The SHA-256 of the tokenizer, as the files say; empty if they do not.
  [[nodiscard]] virtual std::string tokenizer() const { return {}; }
  /// Makes read_tokens() refuse tokens that are not below `tokens`. Throws Error (kUsage) if a file says that
  /// it has such a token.
  virtual void set_vocabulary(std::int64_t tokens) { vocabulary_ = tokens; }
  /// Copies the first out.size() tokens of a document. A token that is negative or not in the vocabulary is
  /// an Error of kind kUsage that names the file, and so is a file that has become too short.
  virtual void read_tokens(std::int64_t document, std::span<std::int64_t> out) const = 0;
  /// Copies which of the first out.size() tokens of a document count as labels, as bytes that are not 0.
  virtual void read_mask(std::int64_t document, std::span<std::byte> out) const = 0;
  /// Returns "data file 'FILE', document I", where I counts the documents of the file from 0.
  [[nodiscard]] virtual std::string position(std::int64_t document) const = 0;
  [[nodiscard]] virtual const DataFile& file_of(std::int64_t document) const = 0;
  /// Makes DataFile::change() of every file compare with its present state.
  virtual void accept_changes() const = 0;

 protected:
  /// Throws Error (kUsage) if there would be 2^32 or more documents, or if their lengths would take more
  /// memory than metadata_limit().
  void require_room(std::int64_t more_documents) const;
  /// Throws Error (kUsage) for the first of a document's tokens that read_tokens() refuses.
  void require_known(std::int64_t document, std::span<const std::int64_t> tokens) const;

  std::vector<std::int64_t> begins_{0};  ///< The first token of each document, and the end of the last.

 private:
  std::optional<std::int64_t> vocabulary_;
};

}  // namespace accel
