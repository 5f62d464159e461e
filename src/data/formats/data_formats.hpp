#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/config/config.hpp"
#include "data/arrow/arrow_dataset.hpp"
#include "data/formats/document_files.hpp"

namespace accel {

class SampleSource;

/// A format of training data: what the configuration has to say of it, and how its files are opened.
struct DataFormat {
  std::string_view name;     ///< The value of `format` in training.data.train and training.data.eval.
  std::string_view note;     ///< The comment that a first configuration has.
  std::string_view example;  ///< The path of the data in a first configuration.
  std::array<std::string_view, 2> extensions{};  ///< The names of files from which the format is guessed.
  /// What a sample is. If it is empty, a sample is as many tokens as the key `sequence_length` says.
  std::string_view sample{};
  std::int64_t tokens = 0;       ///< How many different tokens there are; 0 for any number.
  bool has_files = true;         ///< Without it samples are drawn: the keys are `vocabulary` and `samples`.
  bool has_directories = false;  ///< A path may be that of a directory of the package datasets.
  bool has_dtype = false;        ///< The key `dtype` may say how the files store tokens.
  /// Samples are made of documents, as the key `packing` says, and have fields for their positions.
  bool has_documents = false;
  /// The files name the fields and hold the labels. Without it there are tokens, from which both are made.
  bool has_own_fields = false;
  /// Throws Error (kUsage) if no file matches, or one does not have the format.
  std::unique_ptr<SampleSource> (*open)(const config::DataSource& source) = nullptr;
  /// Whether files of that path or glob say that they have the format, whatever their names are. Null if the
  /// format has no such mark.
  bool (*recognizes)(const std::string& path) = nullptr;

  /// Whether samples that are made of the format's tokens have a field of this name.
  [[nodiscard]] bool makes_field(std::string_view field) const;
};

[[nodiscard]] std::unique_ptr<SampleSource> open_token_windows(const config::DataSource& source);
[[nodiscard]] std::unique_ptr<SampleSource> open_tensor_table(const config::DataSource& source);
[[nodiscard]] std::unique_ptr<SampleSource> open_arrow_table(const config::DataSource& source);
[[nodiscard]] std::unique_ptr<SampleSource> open_documents(const config::DataSource& source);
[[nodiscard]] std::unique_ptr<SampleSource> open_synthetic_tokens(const config::DataSource& source);

/// The table of formats. The first row is text, which `accel config` takes for files whose extension no row
/// has.
inline constexpr auto kDataFormats = std::to_array<DataFormat>({
    {.name = "text",
     .note = "each byte is a token, from 0 to 255.",
     .example = "data.txt",
     .tokens = 256,
     .open = open_token_windows},
    {.name = "tokens",
     .note = ".npy of whole numbers, .bin with llm.c's header, or with dtype: uint16 without one.",
     .example = "tokens.npy",
     .extensions = {".npy", ".bin"},
     .has_dtype = true,
     .open = open_token_windows},
    {.name = "megatron",
     .note = "the .idx file of Megatron-LM, beside its .bin. Documents follow one another.",
     .example = "train_text_document.idx",
     .extensions = {".idx"},
     .open = open_token_windows},
    {.name = "jsonl",
     .note = "lines of token ids, [1, 2] or {\"input_ids\": [1, 2]}, one line after another.",
     .example = "tokens.jsonl",
     .extensions = {".jsonl", ".ndjson"},
     .open = open_token_windows},
    {.name = "tensors",
     .note = "a safetensors file with the fields above and the targets. Row i of each tensor is sample i.",
     .example = "train.safetensors",
     .extensions = {".safetensors"},
     .sample = "a row of the file's tensors",
     .has_own_fields = true,
     .open = open_tensor_table},
    {.name = "documents",
     .note = "what `accel-export --tokenize` wrote, or a directory of datasets whose rows are tokens.",
     .example = "chat.safetensors",
     .has_directories = true,
     .has_documents = true,
     .open = open_documents,
     .recognizes = holds_documents},
    {.name = "arrow",
     .note = "a directory of save_to_disk (Hugging Face datasets), or Arrow files. A row is a sample.",
     .example = "my_dataset/train",
     .extensions = {".arrow"},
     .sample = "a row of the dataset",
     .has_directories = true,
     .has_own_fields = true,
     .open = open_arrow_table,
     .recognizes = is_saved_dataset},
    {.name = "synthetic",
     .note = "random tokens, for a first run and for benchmarks.",
     .has_files = false,
     .open = open_synthetic_tokens},
});

/// What keys and messages say of the formats. A test compares it with the table.
inline constexpr std::string_view kFormatNames =
    "text|tokens|megatron|jsonl|tensors|documents|arrow|synthetic";
inline constexpr std::string_view kFormatHelp =
    "Format of the files: bytes of text, tokens, Megatron-LM's index, lines of token ids, safetensors whose "
    "rows are samples, documents to pack or pad, datasets on disk (Arrow) whose rows are samples, or random "
    "tokens without a file";
inline constexpr std::string_view kTokenFormats = "text, tokens, megatron, jsonl and synthetic";
inline constexpr std::string_view kDtypeFormat = "tokens";
inline constexpr std::string_view kDocumentsFormat = "documents";
inline constexpr std::string_view kOwnFieldsFormat = "tensors and arrow";

/// The row of a format. Another name is an Error of kind kUsage.
[[nodiscard]] const DataFormat& data_format(std::string_view name);

/// Opens the samples of a source: those of its format, or a mixture of several of it
/// (data/formats/mixture.hpp). Throws what DataFormat::open() throws.
[[nodiscard]] std::unique_ptr<SampleSource> open_data(const config::DataSource& source);

/// Whether a field of this name says something of tokens beside them: masks, types and positions. It has
/// whole numbers, and no loss compares with them.
[[nodiscard]] bool is_beside_tokens(std::string_view name);

/// A model that knows far more tokens than the format has was made for those of a tokenizer: an Error of kind
/// kUsage, since such a model would train on bytes without any other error. Special tokens and padding are
/// not far more.
void require_vocabulary(const DataFormat& format, std::int64_t vocabulary);

}  // namespace accel
