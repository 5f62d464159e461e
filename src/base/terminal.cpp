#include "base/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

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

}  // namespace accel
