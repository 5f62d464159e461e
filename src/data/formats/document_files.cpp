#include "data/formats/document_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/safetensors/header.hpp"
#include "data/files/integers.hpp"
#include "data/formats/arrow_documents.hpp"

namespace accel {
namespace {

constexpr const char* kFormatKey = "format";
constexpr const char* kFormatValue = "accel.documents";
constexpr const char* kTokenizerKey = "tokenizer_sha256";
constexpr const char* kPaddingKey = "pad_token_id";
constexpr const char* kLargestKey = "largest_token";

constexpr const char* kDocumentsHint =
    "accel-export --tokenize writes such a file; docs/formats.md describes it";

[[noreturn]] void refuse_file(std::string message) {
  throw Error(ErrorKind::kUsage, std::move(message)).hint(kDocumentsHint);
}

ckpt::SafetensorsHeader header_of(const std::string& path) {
  try {
    return ckpt::read_safetensors_header(File::open_read(path));
  } catch (const Error& error) {
    if (is_by_signal(error.kind()) || error.kind() == ErrorKind::kFailure) throw;
    refuse_file(fmt::format("it is not a safetensors file: {}", error.message()));
  }
}

const ckpt::SafetensorsEntry& entry_of(const ckpt::SafetensorsHeader& header, std::string_view name,
                                       std::initializer_list<ckpt::DType> dtypes) {
  const auto found = std::find_if(header.entries.begin(), header.entries.end(),
                                  [&](const auto& entry) { return entry.name == name; });
  if (found == header.entries.end()) refuse_file(fmt::format("it has no tensor '{}'", name));
  const bool fits = found->obstacle.empty() && found->shape.size() == 1 &&
                    std::find(dtypes.begin(), dtypes.end(), found->dtype) != dtypes.end();
  if (fits) return *found;
  std::string known;
  for (const ckpt::DType dtype : dtypes)
    known += fmt::format("{}{}", known.empty() ? "" : " or ", ckpt::torch_name(dtype));
  const std::string is =
      found->obstacle.empty()
          ? fmt::format("{} in {} dimensions", ckpt::torch_name(found->dtype), found->shape.size())
          : found->obstacle;
  refuse_file(fmt::format("'{}' is {}; expected {} in one dimension", name, is, known));
}

/// The number that the metadata have under `key`; nothing if they have none.
std::optional<std::int64_t> number_in(const std::map<std::string, std::string>& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  if (const auto number = parse_int<std::int64_t>(found->second); number && *number >= 0) return number;
  refuse_file(fmt::format("its metadata have {} '{}'; expected a number from 0 on", key, found->second));
}

std::string value_in(const std::map<std::string, std::string>& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

}  // namespace

bool holds_documents(const std::string& pattern) {
  if (holds_arrow_documents(pattern)) return true;
  try {
    const auto header = ckpt::read_safetensors_header(File::open_read(data_files(pattern).front()));
    return value_in(header.metadata, kFormatKey) == kFormatValue;
  } catch (const Error&) {
    return false;  // The name may be of a file that is not there yet, or of another kind.
  }
}

DocumentFiles DocumentFiles::open(const std::string& pattern) {
  DocumentFiles files;
  for (const std::string& path : data_files(pattern)) {
    try {
      files.add(path);
    } catch (Error& error) {
      error.add_context(fmt::format("data file '{}'", path));
      throw;
    }
  }
  return files;
}

void DocumentFiles::add(const std::string& path) {
  ckpt::SafetensorsHeader header = header_of(path);
  using ckpt::DType;
  const auto& tokens =
      entry_of(header, "input_ids", {DType::kUInt16, DType::kInt32, DType::kUInt32, DType::kInt64});
  const auto& mask = entry_of(header, "label_mask", {DType::kUInt8, DType::kBool});
  const auto& lengths = entry_of(header, "lengths", {DType::kInt64});
  if (lengths.shape.front() == 0) refuse_file("it holds no documents");
  if (mask.shape.front() != tokens.shape.front()) {
    refuse_file(fmt::format("'label_mask' has {} elements, but 'input_ids' has {}", mask.shape.front(),
                            tokens.shape.front()));
  }
  require_room(lengths.shape.front());
  Part part{.file = DataFile(path),
            .first_document = size(),
            .documents = lengths.shape.front(),
            .tokens_offset = header.buffer_offset + tokens.begin,
            .mask_offset = header.buffer_offset + mask.begin,
            .token_bytes = ckpt::item_bytes(tokens.dtype),
            .is_signed = tokens.dtype == DType::kInt32 || tokens.dtype == DType::kInt64,
            .metadata = std::move(header.metadata)};
  if (header.buffer_offset + header.buffer_bytes != part.file.size())
    throw Error(ErrorKind::kUsage, "it has changed while it was opened");
  (void)number_in(part.metadata, kLargestKey);
  const auto padding = number_in(part.metadata, kPaddingKey);
  if (parts_.empty()) {
    padding_ = padding.value_or(0);
  } else if (value_in(part.metadata, kTokenizerKey) != value_in(parts_.front().metadata, kTokenizerKey)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("it was made with another tokenizer than '{}'", parts_.front().file.path()))
        .hint("tokenize all files with the tokenizer of the model");
  }
  add_lengths(part, header.buffer_offset + lengths.begin, tokens.shape.front());
  parts_.push_back(std::move(part));
}

void DocumentFiles::add_lengths(const Part& part, std::uint64_t offset, std::int64_t tokens) {
  const std::size_t known = begins_.size();
  const std::size_t count = static_cast<std::size_t>(part.documents);
  begins_.resize(known + count);
  const std::span<std::int64_t> ends = std::span(begins_).subspan(known);
  part.file.read(offset, std::as_writable_bytes(ends));
  std::int64_t sum = 0;
  const std::int64_t before = begins_[known - 1];
  for (std::size_t i = 0; i < count; ++i) {
    if (ends[i] < 1)
      refuse_file(fmt::format("document {} has the length {}; expected at least 1", i, ends[i]));
    if (ends[i] > tokens - sum) {
      refuse_file(fmt::format("'input_ids' has {} tokens, but the first {} documents alone have more", tokens,
                              i + 1));
    }
    sum += ends[i];
    ends[i] = before + sum;
  }
  if (sum != tokens)
    refuse_file(fmt::format("'input_ids' has {} tokens, but its documents have {}", tokens, sum));
}

const DocumentFiles::Part& DocumentFiles::part_of(std::int64_t document) const {
  if (document < 0 || document >= size())
    throw Error(ErrorKind::kFailure, "reading past the end of the data");
  return *std::prev(
      std::upper_bound(parts_.begin(), parts_.end(), document,
                       [](std::int64_t number, const Part& part) { return number < part.first_document; }));
}

std::string DocumentFiles::tokenizer() const { return value_in(parts_.front().metadata, kTokenizerKey); }

void DocumentFiles::set_vocabulary(std::int64_t tokens) {
  for (const Part& part : parts_) {
    const auto largest = number_in(part.metadata, kLargestKey);
    if (!largest || *largest < tokens) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("data file '{}': it has the token {}, which is not in the model's vocabulary of "
                            "{} tokens",
                            part.file.path(), *largest, tokens))
        .hint("was the data made with another tokenizer than the model's?");
  }
  DocumentSource::set_vocabulary(tokens);
  // Padding is no label and is seen by nobody, so any token will do, such as where a tokenizer has a token of
  // its own for it that the model lacks.
  if (padding_ >= tokens) padding_ = 0;
}

void DocumentFiles::read_tokens(std::int64_t document, std::span<std::int64_t> out) const {
  const Part& part = part_of(document);
  const std::int64_t first =
      begins_[static_cast<std::size_t>(document)] - begins_[static_cast<std::size_t>(part.first_document)];
  std::vector<std::byte> bytes(out.size() * part.token_bytes);
  part.file.read(part.tokens_offset + static_cast<std::uint64_t>(first) * part.token_bytes, bytes);
  read_integers(bytes.data(), part.token_bytes, part.is_signed, out);
  require_known(document, out);
}

void DocumentFiles::read_mask(std::int64_t document, std::span<std::byte> out) const {
  const Part& part = part_of(document);
  const std::int64_t first =
      begins_[static_cast<std::size_t>(document)] - begins_[static_cast<std::size_t>(part.first_document)];
  part.file.read(part.mask_offset + static_cast<std::uint64_t>(first), out);
}

std::string DocumentFiles::position(std::int64_t document) const {
  const Part& part = part_of(document);
  return fmt::format("data file '{}', document {}", part.file.path(), document - part.first_document);
}

void DocumentFiles::accept_changes() const {
  for (const Part& part : parts_) part.file.accept_change();
}

}  // namespace accel
