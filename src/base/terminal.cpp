#include "base/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace accel {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

}  // namespace

std::optional<std::size_t> terminal_width(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

bool can_redraw(int fd) {
  const std::string_view kind = variable("TERM");
  return ::isatty(fd) == 1 && !kind.empty() && kind != "dumb" && variable("CI").empty();
}

std::size_t redrawn_width(int fd) {
  const std::size_t width = terminal_width(fd).value_or(80);
  return width > 1 ? width - 1 : 1;
}

std::string erased_rows(std::size_t rows) { return rows == 0 ? "" : fmt::format("\x1b[{}F\x1b[J", rows); }

bool allows_colors() { return variable("NO_COLOR").empty() && variable("TERM") != "dumb"; }

std::size_t characters_of(std::string_view text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; };
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins));
}

std::string wrapped_at(std::size_t width, std::string_view text, std::size_t indent, std::size_t column) {
  std::string result;
  bool begins = true;  // No word of the line is there yet.
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\n') {
      ++at;
      result += '\n';
      column = 0;
      begins = true;
      indent = std::min(text.find_first_not_of(' ', at), text.size()) - at + 2;
      continue;
    }
    const std::size_t word = std::min(text.find_first_not_of(' ', at), text.size());
    const std::size_t end = std::min(text.find_first_of(" \n", word), text.size());
    const std::size_t characters = characters_of(text.substr(word, end - word));
    if (!begins && end > word && column + (word - at) + characters > width) {
      result += '\n' + std::string(indent, ' ');
      column = indent;
    } else {
      result += text.substr(at, word - at);
      column += word - at;
    }
    result += text.substr(word, end - word);
    column += characters;
    begins = false;
    at = end;
  }
  return result;
}

std::string wrapped_on(int fd, std::string_view text, std::size_t indent, std::size_t column,
                       std::size_t margin) {
  constexpr std::size_t kNarrow = 30;
  const auto width = ::isatty(fd) == 1 ? terminal_width(fd) : std::nullopt;
  if (!width || *width < kNarrow + margin) return std::string(text);
  return wrapped_at(*width - margin, text, indent, column);
}

}  // namespace accel
