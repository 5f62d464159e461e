#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "data/files/file_tokens.hpp"
#include "data/formats/jsonl_line.hpp"

namespace accel {
namespace {

constexpr std::uint64_t kMostLineBytes = std::uint64_t{16} << 20;

/// The lines of a file, read block by block.
class Lines {
 public:
  explicit Lines(const DataFile& file) : file_(file) {}

  /// Where in the file the line begins that next() returns next.
  [[nodiscard]] std::uint64_t offset() const { return read_ - (buffer_.size() - at_); }

  /// Returns the next line without its end, or nothing behind the last. It is valid until the next call.
  [[nodiscard]] std::optional<std::string_view> next() {
    std::size_t searched = at_;
    while (true) {
      const std::size_t end = buffer_.find('\n', searched);
      if (end != std::string::npos) return taken(end - at_, 1);
      if (buffer_.size() - at_ > kMostLineBytes) {
        throw Error(ErrorKind::kUsage, fmt::format("it has more than {} bytes", kMostLineBytes))
            .hint("write the tokens of such long documents into a .npy, for format: tokens");
      }
      if (read_ == file_.size()) break;
      buffer_.erase(0, at_);
      at_ = 0;
      searched = buffer_.size();
      append_block();
    }
    if (at_ == buffer_.size()) return std::nullopt;
    return taken(buffer_.size() - at_, 0);
  }

 private:
  [[nodiscard]] std::string_view taken(std::size_t bytes, std::size_t end_bytes) {
    const std::string_view line = std::string_view(buffer_).substr(at_, bytes);
    at_ += bytes + end_bytes;
    return line;
  }
  void append_block() {
    const std::size_t old = buffer_.size();
    const std::uint64_t bytes = std::min<std::uint64_t>(kPlaceBytes, file_.size() - read_);
    buffer_.resize(old + bytes);
    file_.read(read_, std::as_writable_bytes(std::span(buffer_).subspan(old)));
    read_ += bytes;
  }

  const DataFile& file_;
  std::string buffer_;
  std::size_t at_ = 0;      ///< Where in the buffer the next line begins.
  std::uint64_t read_ = 0;  ///< Where in the file the next block begins.
};

/// Notes a place about every kPlaceBytes, which takes 24 bytes, whatever the number of tokens: where a line
/// begins, or in a long line where a token ends. A range of tokens is found by parsing from the place before
/// it.
class JsonlTokens final : public FileTokens {
 public:
  explicit JsonlTokens(const std::string& path) : FileTokens(DataFile(path)) {
    Lines lines(file());
    std::vector<std::int64_t> tokens;
    std::vector<LinePlace> within;
    for (std::int64_t number = 1;; ++number) {
      const std::uint64_t offset = lines.offset();
      if (places_.empty() || offset - places_.back().offset >= kPlaceBytes)
        places_.push_back({offset, size_, false});
      tokens.clear();
      within.clear();
      try {
        const auto line = lines.next();
        if (!line) break;
        append_line_tokens(*line, tokens, &within);
      } catch (Error& error) {
        error.add_context(fmt::format("line {}", number));
        throw;
      }
      for (const LinePlace& place : within)
        places_.push_back({offset + place.offset, size_ + static_cast<std::int64_t>(place.tokens), true});
      size_ += static_cast<std::int64_t>(tokens.size());
    }
    if (size_ == 0) throw Error(ErrorKind::kUsage, "the file holds no tokens");
  }

  std::int64_t size() const override { return size_; }

  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    try {
      read_from(place_before(begin), begin, out);
    } catch (const Error&) {
      const auto change = file().change();
      if (!change) throw;
      throw changed_error(file(), *change);
    }
  }

 private:
  struct Place {
    std::uint64_t offset = 0;  ///< Where in the file it is.
    std::int64_t tokens = 0;   ///< The number of tokens before it.
    bool is_in_list = false;   ///< It is a LinePlace, not the beginning of a line.
  };
  using PlaceIterator = std::vector<Place>::const_iterator;

  [[nodiscard]] PlaceIterator place_before(std::int64_t token) const {
    return std::prev(std::upper_bound(places_.begin(), places_.end(), token,
                                      [](std::int64_t t, const Place& place) { return t < place.tokens; }));
  }

  void read_from(PlaceIterator place, std::int64_t begin, std::span<std::int64_t> out) const {
    for (std::vector<std::int64_t> tokens; !out.empty(); ++place) {
      const PlaceIterator next = std::next(place);
      const std::int64_t behind = next == places_.end() ? size_ : next->tokens;
      const auto skipped = static_cast<std::size_t>(begin - place->tokens);
      const std::size_t count = std::min(static_cast<std::size_t>(behind - begin), out.size());
      tokens.clear();
      parse(place, skipped + count, tokens);
      if (tokens.size() < skipped + count)
        throw Error(ErrorKind::kUsage, fmt::format("data file '{}' has lost tokens", file().path()));
      std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(skipped), count, out.begin());
      out = out.subspan(count);
      begin += static_cast<std::int64_t>(count);
    }
  }

  /// Appends the first `count` tokens behind a place, or more. There are as many before the next place.
  void parse(PlaceIterator place, std::size_t count, std::vector<std::int64_t>& tokens) const {
    const PlaceIterator next = std::next(place);
    std::string text((next == places_.end() ? file().size() : next->offset) - place->offset, '\0');
    file().read(place->offset, std::as_writable_bytes(std::span(text)));
    const bool is_cut = next != places_.end() && next->is_in_list;
    bool is_in_list = place->is_in_list;
    for (std::string_view rest = text; !rest.empty() && tokens.size() < count; is_in_list = false) {
      const std::size_t end = rest.find('\n');
      const std::string_view line = rest.substr(0, end);
      if (is_in_list) {
        append_list_tokens(line, tokens);
      } else {
        append_line_tokens(line, tokens, nullptr, is_cut && end == std::string_view::npos);
      }
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
  }

  std::vector<Place> places_;
  std::int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<FileTokens> open_jsonl_tokens(const std::string& path) {
  return std::make_unique<JsonlTokens>(path);
}

}  // namespace accel
