#include "base/name_pattern.hpp"

#include <fmt/format.h>
#include <re2/re2.h>

#include <string>

#include "base/error.hpp"

namespace accel {
namespace {

[[noreturn]] void refuse(std::string_view pattern, std::string_view what) {
  throw Error(ErrorKind::kUsage, fmt::format("the pattern '{}' is not valid: {}", pattern, what))
      .hint(
          "patterns are those of Python's re without look-around, such as (?=a), and back references, such "
          "as \\1");
}

/// Refuses what means something else to RE2 than to Python.
void check_dialect(std::string_view pattern) {
  bool in_set = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest.size() > 1 && rest[0] == '\\') {
      if (std::string_view("0123456789pPCQEz").find(rest[1]) != std::string_view::npos)
        refuse(pattern, fmt::format("'{}' is not supported", rest.substr(0, 2)));
      ++i;
    } else if (!in_set && rest.starts_with("{,")) {
      refuse(pattern, "'{,' is not supported; write '{0,'");
    } else if (in_set && rest.starts_with("[:")) {
      refuse(pattern, "'[:' inside '[ ]' is not supported");
    } else if (!in_set && rest[0] == '[') {
      in_set = true;
      // A ']' right behind the beginning stands for itself.
      if (rest.substr(1).starts_with('^')) ++i;
      if (pattern.substr(i + 1).starts_with(']')) ++i;
    } else if (rest[0] == ']') {
      in_set = false;
    }
  }
}

}  // namespace

NamePattern::NamePattern(std::string_view pattern) {
  check_dialect(pattern);
  re2::RE2::Options options(re2::RE2::Latin1);
  options.set_log_errors(false);
  auto program = std::make_shared<const re2::RE2>(re2::StringPiece(pattern.data(), pattern.size()), options);
  if (!program->ok()) refuse(pattern, program->error());
  program_ = std::move(program);
}

bool NamePattern::matches(std::string_view text) const {
  return re2::RE2::FullMatch(re2::StringPiece(text.data(), text.size()), *program_);
}

bool NamePattern::is_found_in(std::string_view text) const {
  return re2::RE2::PartialMatch(re2::StringPiece(text.data(), text.size()), *program_);
}

std::string NamePattern::replaced_in(std::string_view text, const std::string& replacement) const {
  std::string result(text);
  re2::RE2::GlobalReplace(&result, *program_, replacement);
  return result;
}

void NamePattern::check_replacement(const std::string& replacement) const {
  std::string reason;
  if (program_->CheckRewriteString(replacement, &reason)) return;
  throw Error(ErrorKind::kUsage, fmt::format("the replacement '{}' of the pattern '{}' is not valid: {}",
                                             replacement, text(), reason))
      .hint("\\1 to \\9 stand for the groups of the pattern, and \\\\ for a backslash");
}

const std::string& NamePattern::text() const { return program_->pattern(); }

}  // namespace accel
