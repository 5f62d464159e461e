#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/formats/document_source.hpp"

namespace accel {

/// Whether the first file that matches the path or glob says in its metadata that it holds documents, or is a
/// dataset on disk that does (data/formats/arrow_documents.hpp).
[[nodiscard]] bool holds_documents(const std::string& pattern);

/// The documents of one or more files of `accel-export --tokenize` (docs/formats.md, "Tokenized documents").
class DocumentFiles final : public DocumentSource {
 public:
  /// `pattern` is a path or a glob. Throws Error (kUsage) if nothing matches, a file does not have the format
  /// or no documents, its lengths do not fit its tokens, or two files are of different tokenizers.
  static DocumentFiles open(const std::string& pattern);

  [[nodiscard]] std::int64_t padding() const override { return padding_; }
  [[nodiscard]] std::string tokenizer() const override;
  void set_vocabulary(std::int64_t tokens) override;
  void read_tokens(std::int64_t document, std::span<std::int64_t> out) const override;
  void read_mask(std::int64_t document, std::span<std::byte> out) const override;
  [[nodiscard]] std::string position(std::int64_t document) const override;
  [[nodiscard]] const DataFile& file_of(std::int64_t document) const override {
    return part_of(document).file;
  }
  void accept_changes() const override;

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
  std::int64_t padding_ = 0;
};

}  // namespace accel
