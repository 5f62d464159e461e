#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "cli/completion/outline.hpp"

namespace accel::cli {

/// The commands whose arguments behind "--" are a program with arguments of its own.
inline constexpr std::array<std::string_view, 2> kTakePrograms = {"launch", "check"};

/// Scripts that complete the program's commands, options and their values. Each is made from the outline
/// alone. They need nothing but the shell, not even the package bash-completion.
[[nodiscard]] std::string bash_completion(const Outline& outline);
[[nodiscard]] std::string zsh_completion(const Outline& outline);
[[nodiscard]] std::string fish_completion(const Outline& outline);

/// The names of the options that take a value.
[[nodiscard]] std::vector<std::string> names_with_value(const std::vector<OptionOutline>& options);

/// `text` with `value` in place of `mark`, which occurs once.
[[nodiscard]] std::string filled(std::string text, std::string_view mark, std::string_view value);

}  // namespace accel::cli
