#include "data/files/token_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace accel {
TokenStream TokenStream::open(const config::DataSource& source) {
  TokenStream stream;
  for (const std::string& path : data_files(source.path)) {
    try {
      auto tokens = source.format == "jsonl" ? open_jsonl_tokens(path) : open_flat_tokens(source, path);
      const std::int64_t begin = std::exchange(stream.size_, stream.size_ + tokens->size());
      stream.parts_.push_back({std::move(tokens), begin});
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
                          part.tokens->file().path(), *wrong, first + (wrong - tokens.begin()), *vocabulary_))
      .hint("was the data made with another tokenizer than the model's? positions count tokens from 0");
}

void TokenStream::read(std::int64_t begin, std::span<std::int64_t> out) const {
  for (auto part = part_of(begin); !out.empty(); ++part) {
    if (part == parts_.end()) throw Error(ErrorKind::kFailure, "reading past the end of the data");
    const std::int64_t skip = begin - part->begin;
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(part->tokens->size() - skip, static_cast<std::int64_t>(out.size())));
    part->tokens->read(skip, out.first(count));
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
  for (const Part& part : parts_) ends.push_back(part.begin + part.tokens->size());
  return ends;
}

std::vector<const DataFile*> TokenStream::files_of(std::int64_t begin, std::int64_t count) const {
  std::vector<const DataFile*> files;
  for (auto part = part_of(begin); part != parts_.end() && part->begin < begin + count; ++part)
    files.push_back(&part->tokens->file());
  return files;
}

void TokenStream::accept_changes() const {
  for (const Part& part : parts_) part.tokens->file().accept_change();
}

}  // namespace accel
