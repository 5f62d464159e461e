#include "data/token_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "data/integers.hpp"
#include "data/token_file.hpp"

namespace accel {
TokenStream TokenStream::open(const config::DataSource& source) {
  TokenStream stream;
  for (const std::string& path : data_files(source.path)) {
    try {
      Part part{.file = DataFile(path)};
      if (part.file.size() == 0) throw Error(ErrorKind::kUsage, "the file is empty");
      const MappedFile mapped(path);
      if (mapped.bytes().size() != part.file.size())
        throw Error(ErrorKind::kUsage, "it has changed while it was opened");
      const TokenEncoding encoding = token_encoding(source.format, source.dtype, path, mapped.bytes());
      part.header_bytes = encoding.header_bytes;
      part.token_bytes = encoding.token_bytes;
      part.is_signed = encoding.is_signed;
      const std::size_t payload = part.file.size() - part.header_bytes;
      if (payload == 0) throw Error(ErrorKind::kUsage, "the file holds no tokens");
      if (payload % part.token_bytes != 0) {
        throw Error(ErrorKind::kUsage, fmt::format("{} bytes are not a whole number of {}-byte tokens",
                                                   payload, part.token_bytes));
      }
      part.begin = stream.size_;
      part.size = static_cast<std::int64_t>(payload / part.token_bytes);
      stream.size_ += part.size;
      stream.parts_.push_back(std::move(part));
    } catch (Error& error) {
      error.add_context(fmt::format("data file '{}'", path));
      throw;
    }
  }
  return stream;
}

void TokenStream::require_known(const Part& part, std::int64_t first,
                                std::span<const std::int64_t> tokens) const {
  const auto wrong =
      std::find_if(tokens.begin(), tokens.end(), [&](std::int64_t token) { return token >= *vocabulary_; });
  if (wrong == tokens.end()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("data file '{}': token {} at position {} is not in the model's vocabulary of {} "
                          "tokens",
                          part.file.path(), *wrong, first + (wrong - tokens.begin()), *vocabulary_))
      .hint("was the data made with another tokenizer than the model's? positions count tokens from 0");
}

void TokenStream::require_tokens(const Part& part, std::int64_t first,
                                 std::span<const std::int64_t> numbers) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 32) - 1;
  const auto wrong = std::find_if(numbers.begin(), numbers.end(),
                                  [](std::int64_t number) { return number < 0 || number > kMost; });
  if (wrong == numbers.end()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("data file '{}': {} at position {} is not a token, which is from 0 to {}",
                          part.file.path(), *wrong, first + (wrong - numbers.begin()), kMost))
      .hint("are these token ids? positions count tokens from 0");
}

void TokenStream::read(std::int64_t begin, std::span<std::int64_t> out) const {
  std::vector<std::byte> bytes;
  for (auto part = part_of(begin); !out.empty(); ++part) {
    if (part == parts_.end()) throw Error(ErrorKind::kFailure, "reading past the end of the data");
    const std::int64_t skip = begin - part->begin;
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(part->size - skip, static_cast<std::int64_t>(out.size())));
    bytes.resize(count * part->token_bytes);
    part->file.read(part->header_bytes + static_cast<std::size_t>(skip) * part->token_bytes, bytes);
    read_integers(bytes.data(), part->token_bytes, part->is_signed, out.first(count));
    if (part->is_signed) require_tokens(*part, skip, out.first(count));
    if (vocabulary_) require_known(*part, skip, out.first(count));
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
}

std::vector<TokenStream::Part>::const_iterator TokenStream::part_of(std::int64_t position) const {
  return std::prev(std::upper_bound(parts_.begin(), parts_.end(), position,
                                    [](std::int64_t p, const Part& part) { return p < part.begin; }));
}

std::vector<std::int64_t> TokenStream::file_ends() const {
  std::vector<std::int64_t> ends;
  for (const Part& part : parts_) ends.push_back(part.begin + part.size);
  return ends;
}

std::vector<const DataFile*> TokenStream::files_of(std::int64_t begin, std::int64_t count) const {
  std::vector<const DataFile*> files;
  for (auto part = part_of(begin); part != parts_.end() && part->begin < begin + count; ++part)
    files.push_back(&part->file);
  return files;
}

void TokenStream::accept_changes() const {
  for (const Part& part : parts_) part.file.accept_change();
}

}  // namespace accel
