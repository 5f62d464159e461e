#pragma once

#include <torch/csrc/jit/frontend/source_range.h>

#include <optional>
#include <span>
#include <string>

namespace accel::train {

/// Where the author of a model wrote something, such as "model.py:12".
struct AuthorLine {
  std::string text;
  bool in_torch = false;  ///< It is a line of torch, which the author called.
};

/// The line that `range`, the source of a node in a loaded model, was made from. A scripted model names the
/// line itself, and a traced one the Python frames of the call, of which the innermost outside of torch is
/// taken. In a file of `accel import` it is the comment at the end of the line. Nothing if the file does not
/// say it.
std::optional<AuthorLine> author_line(const torch::jit::SourceRange& range);

/// Whether tracing recorded what `range` is the source of; nothing if the file does not say it.
std::optional<bool> is_of_trace(const torch::jit::SourceRange& range);

}  // namespace accel::train
