#include "import/input_checks.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "import/statements.hpp"

namespace accel {
namespace {

using nlohmann::json;

/// torch.export takes sizes of at least 2 for granted, but its programs are right for smaller ones, too, and
/// torch does not check this either.
constexpr std::int64_t kTakenForGranted = 2;

struct Range {
  std::optional<std::int64_t> least;
  std::optional<std::int64_t> most;
};

/// The name of a size that may change, which torch writes as "Symbol('s72', positive=True, integer=True)".
/// Nothing for an expression, such as a multiple: the graph itself checks it.
std::optional<std::string> symbol_of(const std::string& expression) {
  constexpr std::string_view kStart = "Symbol('";
  if (!expression.starts_with(kStart)) {
    const bool is_name = expression.find_first_of("(* +-/") == std::string::npos;
    return is_name ? std::optional(expression) : std::nullopt;
  }
  if (expression.find('(', kStart.size()) != std::string::npos) return std::nullopt;
  return expression.substr(kStart.size(), expression.find('\'', kStart.size()) - kStart.size());
}

std::optional<std::int64_t> bound_of(const json& range, const char* key) {
  const auto found = range.find(key);
  if (found == range.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

void raise_unless(const std::string& condition, const std::string& size, const std::string& text,
                  std::vector<std::string>& lines) {
  lines.push_back(fmt::format("if {}:", condition));
  lines.emplace_back("  pass");
  lines.emplace_back("else:");
  lines.push_back(fmt::format("  ops.prim.RaiseException(torch.format({}, {}), \"builtins.ValueError\")",
                              literal_of(text), size));
}

}  // namespace

std::vector<std::string> input_checks(const json& program) {
  const json& module = program.at("graph_module");
  const json& ranges = program.at("range_constraints");
  std::vector<std::string> lines;
  std::map<std::string, std::string> first;  // Maps a symbol to the variable with its value.
  int count = 0;
  for (const json& spec : module.at("signature").at("input_specs")) {
    if (!spec.contains("user_input") || !spec.at("user_input").at("arg").contains("as_tensor")) continue;
    const auto input = spec.at("user_input").at("arg").at("as_tensor").at("name").get<std::string>();
    const json& sizes = module.at("graph").at("tensor_values").at(input).at("sizes");
    const std::string value = identifier_of(input);
    raise_unless(
        fmt::format("torch.eq(torch.dim({}), {})", value, sizes.size()), fmt::format("torch.dim({})", value),
        fmt::format("input '{}' has {{}} dimensions, and the model was exported for {}", input, sizes.size()),
        lines);
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      const std::string size = fmt::format("v_size_{}", count++);
      const std::string where =
          fmt::format("input '{}' has {{}} in dimension {}, and the model was exported for ", input, d);
      lines.push_back(fmt::format("{} = torch.size({}, {})", size, value, d));
      if (sizes[d].contains("as_int")) {
        const auto fixed = sizes[d].at("as_int").get<std::int64_t>();
        raise_unless(fmt::format("torch.eq({}, {})", size, fixed), size,
                     where + fmt::format("{} alone", fixed), lines);
        continue;
      }
      const auto symbol = symbol_of(sizes[d].at("as_expr").at("expr_str").get<std::string>());
      if (!symbol) continue;
      if (const auto [known, fresh] = first.emplace(*symbol, size); !fresh) {
        raise_unless(fmt::format("torch.eq({}, {})", size, known->second), size,
                     where + "as many as in another dimension of the inputs", lines);
        continue;
      }
      const auto range = ranges.find(*symbol);
      if (range == ranges.end()) continue;
      const Range bounds{bound_of(*range, "min_val"), bound_of(*range, "max_val")};
      if (bounds.least && *bounds.least > kTakenForGranted)
        raise_unless(fmt::format("torch.ge({}, {})", size, *bounds.least), size,
                     where + fmt::format("at least {}", *bounds.least), lines);
      if (bounds.most)
        raise_unless(fmt::format("torch.le({}, {})", size, *bounds.most), size,
                     where + fmt::format("at most {}", *bounds.most), lines);
    }
  }
  return lines;
}

}  // namespace accel
