#include "train/graph/analysis/author_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string_view>

namespace accel::train {
namespace {

using torch::jit::SourceRange;

bool is_of_torch(std::string_view file) {
  return file.find("-packages/torch/") != std::string_view::npos || file.starts_with("torch/");
}

/// The source of a traced node is the list of Python frames as a whole.
bool is_list_of_frames(const SourceRange& range) {
  return range.source() && range.start() == 0 && range.size() == range.source()->size();
}

/// "/models/gpt.py:12" of "/models/gpt.py(12): forward".
std::optional<AuthorLine> line_of_frame(std::string_view frame) {
  const std::size_t close = frame.find("): ");
  if (close == std::string_view::npos) return std::nullopt;
  const std::size_t open = frame.rfind('(', close);
  if (open == std::string_view::npos) return std::nullopt;
  const std::string_view file = frame.substr(0, open);
  return AuthorLine{fmt::format("{}:{}", file, frame.substr(open + 1, close - open - 1)), is_of_torch(file)};
}

/// The innermost frame outside of torch, or else the innermost of all. The frames of the program that traced
/// the model lie behind torch.jit and do not count.
std::optional<AuthorLine> line_of_frames(std::string_view frames) {
  std::optional<AuthorLine> innermost;
  while (!frames.empty()) {
    const std::size_t end = std::min(frames.find('\n'), frames.size());
    const auto line = line_of_frame(frames.substr(0, end));
    if (line && line->text.find("torch/jit/_trace.py:") != std::string::npos) break;
    if (line && !line->in_torch) return line;
    if (line && !innermost) innermost = line;
    frames.remove_prefix(std::min(end + 1, frames.size()));
  }
  return innermost;
}

/// The comment "# FILE:LINE" at the end of the line on which `range` begins.
std::optional<AuthorLine> line_of_comment(const SourceRange& range) {
  if (!range.source()) return std::nullopt;
  constexpr std::string_view kComment = "  # ";
  const std::string line = range.source()->get_line(range.source()->lineno_for_offset(range.start())).str();
  const std::size_t at = line.rfind(kComment);
  if (at == std::string::npos) return std::nullopt;
  std::string text = line.substr(at + kComment.size());
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size() ||
      text.find_first_not_of("0123456789", colon + 1) != std::string::npos)
    return std::nullopt;
  return AuthorLine{text, is_of_torch(text)};
}

}  // namespace

std::optional<AuthorLine> author_line(const SourceRange& range) {
  const std::optional<SourceRange> original = range.findSourceRangeThatGenerated();
  if (!original) return line_of_comment(range);
  if (is_list_of_frames(*original)) return line_of_frames(original->text().str());
  const auto place = original->file_line_col();
  if (!place) return std::nullopt;
  return AuthorLine{fmt::format("{}:{}", std::get<0>(*place), std::get<1>(*place)),
                    is_of_torch(std::get<0>(*place))};
}

std::optional<bool> is_of_trace(const SourceRange& range) {
  const std::optional<SourceRange> original = range.findSourceRangeThatGenerated();
  if (!original || !original->source()) return std::nullopt;
  return is_list_of_frames(*original);
}

}  // namespace accel::train
