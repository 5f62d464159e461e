#include "import/sizes.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.hpp"

namespace accel {
namespace {

using nlohmann::json;

/// The name of a size that may change, which torch writes as "Symbol('s72', positive=True, integer=True)".
/// Nothing for an expression, such as a multiple.
std::optional<std::string> symbol_of(const std::string& expression) {
  constexpr std::string_view kStart = "Symbol('";
  if (!expression.starts_with(kStart)) {
    const bool is_name = expression.find_first_of("(* +-/") == std::string::npos;
    return is_name ? std::optional(expression) : std::nullopt;
  }
  if (expression.find('(', kStart.size()) != std::string::npos) return std::nullopt;
  return expression.substr(kStart.size(), expression.find('\'', kStart.size()) - kStart.size());
}

/// A number of at most nine digits.
std::optional<std::int64_t> small_number(std::string_view text) {
  constexpr std::size_t kMostDigits = 9;
  return text.size() <= kMostDigits ? parse_int<std::int64_t>(text) : std::nullopt;
}

std::optional<std::int64_t> bound_of(const json& range, const char* key) {
  const auto found = range.find(key);
  if (found == range.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

}  // namespace

std::int64_t LinearSize::size_at(std::int64_t value) const {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(factor, value, &result) || __builtin_add_overflow(result, offset, &result))
    return std::numeric_limits<std::int64_t>::max();
  return result;
}

std::string LinearSize::text() const {
  std::string result = factor == 1 ? "a number" : fmt::format("a multiple of {}", factor);
  if (offset != 0) result += fmt::format(" {} {}", offset < 0 ? "minus" : "plus", std::abs(offset));
  return result;
}

std::optional<LinearSize> linear_size_of(std::string_view expression) {
  constexpr std::string_view kSum = "Add(";
  constexpr std::string_view kAddend = ", Integer(";
  constexpr std::string_view kProduct = "Mul(Integer(";
  constexpr std::string_view kThen = "), ";
  LinearSize result;
  if (expression.starts_with(kSum) && expression.ends_with("))")) {
    const std::size_t at = expression.rfind(kAddend);
    if (at == std::string_view::npos || at < kSum.size()) return std::nullopt;
    const std::size_t begin = at + kAddend.size();
    const auto offset = small_number(expression.substr(begin, expression.size() - 2 - begin));
    if (!offset) return std::nullopt;
    result.offset = *offset;
    expression = expression.substr(kSum.size(), at - kSum.size());
  }
  if (expression.starts_with(kProduct) && expression.ends_with(")")) {
    expression = expression.substr(kProduct.size(), expression.size() - kProduct.size() - 1);
    const std::size_t at = expression.find(kThen);
    const auto factor = small_number(expression.substr(0, at));
    if (!factor || *factor < 1 || at == std::string_view::npos) return std::nullopt;
    result.factor = *factor;
    expression.remove_prefix(at + kThen.size());
  }
  const auto symbol = symbol_of(std::string(expression));
  if (!symbol) return std::nullopt;
  result.symbol = *symbol;
  return result;
}

SizeRange range_of(const json& ranges, const std::string& symbol) {
  const auto range = ranges.find(symbol);
  if (range == ranges.end()) return {};
  return {bound_of(*range, "min_val"), bound_of(*range, "max_val")};
}

}  // namespace accel
