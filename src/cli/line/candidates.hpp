#pragma once

#include <string>
#include <vector>

#include "cli/line/outline.hpp"

namespace accel::cli {

/// The lines that `accel __complete WORD...` prints for the scripts of `accel completion`. `words` are those
/// behind `accel` up to the cursor; the last one is the word to complete. A word "=" of its own is a part of
/// the words around it, because bash splits words there.
///
/// A line is a candidate, with a tab and a description if there is one. The shell chooses those that fit what
/// is typed. `:file` or `:directory` stands alone and asks the shell for paths, and `:program N` for what the
/// command line completes that begins behind N words, `accel` included.
[[nodiscard]] std::vector<std::string> candidates(const Outline& outline, std::vector<std::string> words);

}  // namespace accel::cli
