#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.hpp"
#include "data/files/file_tokens.hpp"
#include "data/files/integers.hpp"
#include "data/files/megatron_index.hpp"
#include "data/files/token_file.hpp"

namespace accel {
namespace {

/// Opens the file that holds the tokens: the one that `source` names, or the one beside its index.
DataFile open_tokens(const config::DataSource& source, const std::string& path) {
  DataFile file(source.format == "megatron" ? megatron_tokens_path(path).string() : path);
  if (file.size() == 0) throw Error(ErrorKind::kUsage, "the file is empty");
  return file;
}

/// Returns the encoding of the tokens in `file`, which open_tokens() has opened.
TokenEncoding encoding_of(const config::DataSource& source, const std::string& path, const DataFile& file) {
  const MappedFile mapped(path);
  if (source.format == "megatron") return megatron_encoding(mapped.bytes(), file.size());
  if (mapped.bytes().size() != file.size())
    throw Error(ErrorKind::kUsage, "it has changed while it was opened");
  return token_encoding(source.format, source.dtype, path, mapped.bytes());
}

class FlatTokens final : public FileTokens {
 public:
  FlatTokens(DataFile opened, const TokenEncoding& encoding)
      : FileTokens(std::move(opened)), encoding_(encoding) {
    const std::size_t payload = file().size() - encoding_.header_bytes;
    if (payload == 0) throw Error(ErrorKind::kUsage, "the file holds no tokens");
    if (payload % encoding_.token_bytes != 0) {
      throw Error(ErrorKind::kUsage, fmt::format("{} bytes are not a whole number of {}-byte tokens", payload,
                                                 encoding_.token_bytes));
    }
    size_ = static_cast<std::int64_t>(payload / encoding_.token_bytes);
  }

  std::int64_t size() const override { return size_; }

  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    std::vector<std::byte> bytes(out.size() * encoding_.token_bytes);
    file().read(encoding_.header_bytes + static_cast<std::size_t>(begin) * encoding_.token_bytes, bytes);
    read_integers(bytes.data(), encoding_.token_bytes, encoding_.is_signed, out);
    if (encoding_.is_signed) require_tokens(begin, out);
  }

 private:
  void require_tokens(std::int64_t first, std::span<const std::int64_t> numbers) const {
    const auto wrong = std::find_if(numbers.begin(), numbers.end(),
                                    [](std::int64_t number) { return number < 0 || number > kLargestToken; });
    if (wrong == numbers.end()) return;
    throw Error(ErrorKind::kUsage,
                fmt::format("data file '{}': {} at position {} is not a token, which is from 0 to {}",
                            file().path(), *wrong, first + (wrong - numbers.begin()), kLargestToken))
        .hint("are these token ids? positions count tokens from 0");
  }

  TokenEncoding encoding_;
  std::int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<FileTokens> open_flat_tokens(const config::DataSource& source, const std::string& path) {
  DataFile file = open_tokens(source, path);
  const TokenEncoding encoding = encoding_of(source, path, file);
  return std::make_unique<FlatTokens>(std::move(file), encoding);
}

}  // namespace accel
