#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace accel {

/// A size of a program of torch.export as a multiple of a symbol and a number more, as torch.export derives
/// one size from another.
struct LinearSize {
  std::string symbol;
  std::int64_t factor = 1;
  std::int64_t offset = 0;

  [[nodiscard]] bool is_symbol() const { return factor == 1 && offset == 0; }
  /// The size where the symbol has the value. Saturates instead of overflowing.
  [[nodiscard]] std::int64_t size_at(std::int64_t value) const;
  /// Describes the size, such as "a number" or "a multiple of 2 plus 1".
  [[nodiscard]] std::string text() const;
};

/// Reads "Add(Mul(Integer(2), Symbol('s72', ...)), Integer(1))", of which each part may be absent. Returns
/// nothing for other expressions.
[[nodiscard]] std::optional<LinearSize> linear_size_of(std::string_view expression);

/// The least and the greatest value of a symbol; absent without a bound.
struct SizeRange {
  std::optional<std::int64_t> least;
  std::optional<std::int64_t> most;
};

/// The range of a symbol in the `range_constraints` of a program.
[[nodiscard]] SizeRange range_of(const nlohmann::json& ranges, const std::string& symbol);

}  // namespace accel
