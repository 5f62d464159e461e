#include "data/formats/arrow_documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "data/arrow/arrow_dataset.hpp"
#include "data/arrow/arrow_file.hpp"
#include "data/files/integers.hpp"
#include "data/formats/data_formats.hpp"

namespace accel {
namespace {

using ckpt::DType;

constexpr std::int64_t kFirstDocuments = 64;  // So many are read when the files are opened.

/// The columns of a row that becomes a document. All but the first may be missing.
constexpr std::array kColumnNames = {"input_ids", "labels", "attention_mask", "completion_mask",
                                     "assistant_masks"};
constexpr std::size_t kTokensColumn = 0;
constexpr std::size_t kLabelsColumn = 1;
constexpr std::size_t kAttentionColumn = 2;
constexpr std::array kMaskColumns = {std::size_t{3}, std::size_t{4}};
/// Columns that only rows of several documents have.
constexpr std::array kOfPacks = {"position_ids", "seq_lengths"};

constexpr const char* kRowsHint = "format: arrow takes rows of one length as samples, with all their columns";

/// How the integers of a column are stored.
struct Integers {
  std::size_t bytes = 0;
  bool is_signed = false;
};

std::optional<Integers> integers_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return Integers{ckpt::item_bytes(dtype), true};
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
      return Integers{ckpt::item_bytes(dtype), false};
    default:
      return std::nullopt;
  }
}

/// The number of the column with that name; nothing if there is none.
std::optional<std::size_t> column_named(const std::vector<ArrowColumn>& columns, std::string_view name) {
  const auto found = std::find_if(columns.begin(), columns.end(),
                                  [&](const ArrowColumn& column) { return column.name == name; });
  if (found == columns.end()) return std::nullopt;
  return static_cast<std::size_t>(found - columns.begin());
}

/// Throws unless each row of the column is a list of whole numbers.
Integers require_lists(const ArrowColumn& column) {
  const auto integers = integers_of(column.dtype);
  if (column.obstacle.empty() && integers && column.lists.size() == 1) return *integers;
  const std::string found =
      !column.obstacle.empty()
          ? column.obstacle
          : fmt::format("has {} in {} levels of lists", ckpt::torch_name(column.dtype), column.lists.size());
  throw Error(
      ErrorKind::kUsage,
      fmt::format("the column '{}' {}; expected a list of whole numbers in each row", column.name, found))
      .hint("cast the column with dataset.cast_column, or take it away with dataset.remove_columns");
}

class ArrowDocuments final : public DocumentSource {
 public:
  explicit ArrowDocuments(const std::string& pattern, bool takes_padding = false) {
    for (const std::string& path : arrow_files(pattern)) {
      try {
        add(path);
      } catch (Error& error) {
        error.add_context(fmt::format("data file '{}'", path));
        throw;
      }
    }
    if (size() == 0) throw Error(ErrorKind::kUsage, fmt::format("'{}' has no rows with tokens", pattern));
    for (std::int64_t document = 0; !takes_padding && document < std::min(size(), kFirstDocuments);
         ++document)
      require_unpadded(document, length(document));
  }

  /// Whether no column but the tokens and what is said of them has numbers, so that none holds labels.
  [[nodiscard]] bool has_tokens_alone() const { return has_tokens_alone_; }

  void read_tokens(std::int64_t document, std::span<std::int64_t> out) const override {
    read(kTokensColumn, document, out);
    require_known(document, out);
    require_unpadded(document, static_cast<std::int64_t>(out.size()));
  }

  void read_mask(std::int64_t document, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{1});
    std::vector<std::int64_t> values(out.size());
    for (const std::size_t mask : kMaskColumns) {
      if (!read(mask, document, values)) continue;
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (values[i] == 0) out[i] = std::byte{0};
      }
    }
    if (!read(kLabelsColumn, document, values)) return;
    std::vector<std::int64_t> tokens(out.size());
    read(kTokensColumn, document, tokens);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (values[i] == kIgnoredLabel) {
        out[i] = std::byte{0};
      } else if (values[i] != tokens[i]) {
        throw Error(ErrorKind::kUsage, fmt::format("{}: label {} is {}, but the token is {}",
                                                   position(document), i, values[i], tokens[i]))
            .hint(fmt::format("labels of documents are the tokens themselves or {}, as the models of "
                              "transformers take them; {}",
                              kIgnoredLabel, kRowsHint));
      }
    }
  }

  std::string position(std::int64_t document) const override {
    const FileOfRows& its = files_[part_of(document).file];
    return fmt::format("data file '{}', document {}", its.file.path(), document - its.first_document);
  }
  const DataFile& file_of(std::int64_t document) const override {
    return files_[part_of(document).file].file;
  }
  void accept_changes() const override {
    for (const FileOfRows& its : files_) its.file.accept_change();
  }

 private:
  struct FileOfRows {
    DataFile file;
    std::int64_t first_document = 0;
    /// How each column is stored; an item of a column that is not there has 0 bytes.
    std::array<Integers, kColumnNames.size()> integers{};
  };
  /// The documents of a record batch.
  struct Part {
    std::size_t file = 0;
    std::int64_t first_document = 0;
    std::array<std::uint64_t, kColumnNames.size()>
        values_at{};  ///< Where the first document has each column.
  };

  void add(const std::string& path) {
    FileOfRows its{.file = DataFile(path), .first_document = size()};
    const ArrowLayout layout = read_arrow_layout(its.file);
    for (const char* name : kOfPacks) {
      if (!column_named(layout.columns, name)) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("its rows have '{}', so that each is several documents", name))
          .hint(fmt::format("pack the rows of the dataset before it was packed, or take the column away; {}",
                            kRowsHint));
    }
    std::array<std::optional<std::size_t>, kColumnNames.size()> columns;
    for (std::size_t i = 0; i < kColumnNames.size(); ++i) {
      columns[i] = column_named(layout.columns, kColumnNames[i]);
      if (columns[i]) its.integers[i] = require_lists(layout.columns[*columns[i]]);
    }
    if (!columns[kTokensColumn]) {
      throw Error(ErrorKind::kUsage, "it has no column 'input_ids'")
          .hint("accel-export --tokenize makes tokens of the texts and chats of a dataset");
    }
    for (const ArrowColumn& column : layout.columns) {
      const bool is_of_tokens = column.name == kColumnNames[kTokensColumn] || is_beside_tokens(column.name);
      if (column.obstacle.empty() && !is_of_tokens) has_tokens_alone_ = false;
    }
    if (!files_.empty()) require_same_columns(its);
    for (const ArrowBatch& batch : layout.batches) add_batch(its, layout.columns, batch, columns);
    files_.push_back(std::move(its));
  }

  /// Throws unless the file has those columns that the first file has. A file without a mask of the others
  /// would have all of its tokens learned.
  void require_same_columns(const FileOfRows& its) const {
    const FileOfRows& first = files_.front();
    for (std::size_t i = 0; i < kColumnNames.size(); ++i) {
      const bool is_here = its.integers[i].bytes != 0;
      const bool is_in_first = first.integers[i].bytes != 0;
      if (is_here == is_in_first) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("it {} a column '{}', but '{}' has {}", is_here ? "has" : "does not have",
                              kColumnNames[i], first.file.path(), is_here ? "none" : "one"))
          .hint(
              "give all files the same columns of labels and masks: dataset.map adds one, "
              "dataset.remove_columns takes one away; training.data.train.mixture takes files whose "
              "columns differ as sources of their own");
    }
  }

  void add_batch(const FileOfRows& its, const std::vector<ArrowColumn>& columns, const ArrowBatch& batch,
                 const std::array<std::optional<std::size_t>, kColumnNames.size()>& numbers) {
    Part part{.file = files_.size(), .first_document = size()};
    require_room(batch.rows);
    std::vector<std::int64_t> begins;  // Each is the place of a row's first token.
    for (std::size_t i = 0; i < kColumnNames.size(); ++i) {
      if (!numbers[i]) continue;
      const ArrowColumn& column = columns[*numbers[i]];
      const ArrowChunk& chunk = batch.chunks[*numbers[i]];
      if (chunk.has_nulls) {
        throw Error(ErrorKind::kUsage, fmt::format("the column '{}' has nulls", column.name))
            .hint("fill them with dataset.map, or take their rows away with dataset.filter");
      }
      const auto offsets = read_arrow_offsets(its.file, column, chunk, 0, 0, batch.rows);
      if (i == kTokensColumn) begins = offsets;
      require_lengths(offsets, begins, column.name);
      part.values_at[i] =
          chunk.values_at + static_cast<std::uint64_t>(offsets.front()) * its.integers[i].bytes;
    }
    for (std::size_t row = 0; row + 1 < begins.size(); ++row) {
      if (begins[row + 1] != begins[row]) begins_.push_back(begins_.back() + (begins[row + 1] - begins[row]));
    }
    if (size() > part.first_document) parts_.push_back(part);
  }

  static void require_lengths(const std::vector<std::int64_t>& offsets,
                              const std::vector<std::int64_t>& begins, const std::string& name) {
    for (std::size_t row = 0; row + 1 < begins.size(); ++row) {
      const std::int64_t found = offsets[row + 1] - offsets[row];
      const std::int64_t expected = begins[row + 1] - begins[row];
      if (found == expected) continue;
      throw Error(ErrorKind::kUsage, fmt::format("'{}' has {} numbers in a row in which 'input_ids' has {}",
                                                 name, found, expected))
          .hint("there is one label and one number of each mask for each token");
    }
  }

  [[nodiscard]] const Part& part_of(std::int64_t document) const {
    if (document < 0 || document >= size())
      throw Error(ErrorKind::kFailure, "reading past the end of the data");
    return *std::prev(
        std::upper_bound(parts_.begin(), parts_.end(), document,
                         [](std::int64_t number, const Part& part) { return number < part.first_document; }));
  }

  /// Copies the first numbers that a document has in a column; false if the column is not there.
  bool read(std::size_t column, std::int64_t document, std::span<std::int64_t> out) const {
    const Part& part = part_of(document);
    const Integers& integers = files_[part.file].integers[column];
    if (integers.bytes == 0) return false;
    const std::int64_t first =
        begins_[static_cast<std::size_t>(document)] - begins_[static_cast<std::size_t>(part.first_document)];
    std::vector<std::byte> bytes(out.size() * integers.bytes);
    files_[part.file].file.read(part.values_at[column] + static_cast<std::uint64_t>(first) * integers.bytes,
                                bytes);
    read_integers(bytes.data(), integers.bytes, integers.is_signed, out);
    return true;
  }

  /// Throws if some of the first `count` tokens of a document are padding.
  void require_unpadded(std::int64_t document, std::int64_t count) const {
    std::vector<std::int64_t> mask(static_cast<std::size_t>(count));
    if (!read(kAttentionColumn, document, mask)) return;
    const auto hidden = std::find(mask.begin(), mask.end(), 0);
    if (hidden == mask.end()) return;
    throw Error(ErrorKind::kUsage, fmt::format("{}: attention_mask hides token {}, so that it has padding",
                                               position(document), hidden - mask.begin()))
        .hint(fmt::format("tokenize without padding, or let accel-export --tokenize leave it out; {}",
                          kRowsHint));
  }

  std::vector<FileOfRows> files_;
  std::vector<Part> parts_;
  bool has_tokens_alone_ = true;
};

}  // namespace

std::unique_ptr<DocumentSource> open_arrow_documents(const std::string& pattern) {
  return std::make_unique<ArrowDocuments>(pattern);
}

bool holds_arrow_documents(const std::string& pattern) {
  if (!is_saved_dataset(pattern)) return false;
  try {
    const ArrowDocuments documents(pattern, /*takes_padding=*/true);
    if (documents.has_tokens_alone()) return true;
    for (std::int64_t i = 1; i < documents.size(); ++i) {
      if (documents.length(i) != documents.length(0)) return true;
    }
  } catch (const Error& error) {
    if (is_by_signal(error.kind())) throw;
  }
  return false;
}

}  // namespace accel
