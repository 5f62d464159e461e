#pragma once

#include <fmt/format.h>

#include <concepts>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace accel {

/// Runs `action` and returns what it returns. An Error of it gets the context that `context` returns.
template <std::invocable Context>
decltype(auto) with_context(const Context& context, const std::invocable auto& action) {
  try {
    return action();
  } catch (Error& e) {
    e.add_context(context());
    throw;
  }
}

/// The same with the context `'name'`, or for a `what` such as "tensor" with `tensor 'name'`.
decltype(auto) with_context(std::string_view what, std::string_view name, const std::invocable auto& action) {
  return with_context([&] { return fmt::format("{}{}'{}'", what, what.empty() ? "" : " ", name); }, action);
}

/// The same with the context `'path'`, unless the Error names the path already.
decltype(auto) with_path(const std::filesystem::path& path, const std::invocable auto& action) {
  try {
    return action();
  } catch (Error& e) {
    if (e.message().find(path.string()) == std::string::npos)
      e.add_context(fmt::format("'{}'", path.string()));
    throw;
  }
}

}  // namespace accel
