#include "import/input_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/pt2/archive.hpp"
#include "import/sizes.hpp"
#include "import/statements.hpp"

namespace accel {
namespace {

using nlohmann::json;

/// torch.export takes sizes of at least 2 for granted, and torch does not check that either. Programs are
/// right for smaller ones unless the model asks whether a size is 1.
constexpr std::int64_t kTakenForGranted = 2;

void raise_unless(const std::string& condition, const std::string& size, const std::string& text,
                  std::vector<std::string>& lines) {
  lines.push_back(fmt::format("if {}:", condition));
  lines.emplace_back("  pass");
  lines.emplace_back("else:");
  lines.push_back(fmt::format("  ops.prim.RaiseException(torch.format({}, {}), \"builtins.ValueError\")",
                              literal_of(text), size));
}

/// Takes `text` from the beginning of `left`.
bool take(std::string_view& left, std::string_view text) {
  if (!left.starts_with(text)) return false;
  left.remove_prefix(text.size());
  return true;
}

/// Takes what stands before `end`, and `end`.
std::optional<std::string> take_until(std::string_view& left, std::string_view end) {
  const std::size_t at = left.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  std::string text(left.substr(0, at));
  left.remove_prefix(at + end.size());
  return text;
}

/// Takes `L['ids'].size()[1]`, or `L['ids'][0].size()[1]` for an input in a list, and returns it in
/// TorchScript.
std::optional<std::string> take_size(std::string_view& left, const json& values) {
  if (!take(left, "L['")) return std::nullopt;
  const auto name = take_until(left, "']");
  if (!name) return std::nullopt;
  std::string input = *name;
  if (take(left, "[")) {
    const auto item = take_until(left, "]");
    if (!item || !is_digits(*item)) return std::nullopt;
    input += "_" + *item;
  }
  if (!take(left, ".size()[")) return std::nullopt;
  const auto dimension = take_until(left, "]");
  if (!dimension || !is_digits(*dimension) || !values.contains(input)) return std::nullopt;
  return fmt::format("torch.size({}, {})", identifier_of(input), *dimension);
}

/// A condition that torch.export wrote in Python, such as `L['ids'].size()[1] == 16`, in TorchScript.
std::string condition_of(const std::string& guard, const json& values) {
  constexpr std::string_view kSigns = "0123456789 ()+-*/%<>=!,";
  constexpr std::array<std::string_view, 5> kWords = {"min", "max", "and", "or", "not"};
  std::string result;
  std::string_view left = guard;
  while (!left.empty()) {
    const auto word =
        std::find_if(kWords.begin(), kWords.end(), [&](std::string_view w) { return left.starts_with(w); });
    if (kSigns.find(left.front()) != std::string_view::npos) {
      result += left.front();
      left.remove_prefix(1);
    } else if (word != kWords.end()) {
      result += *word;
      left.remove_prefix(word->size());
    } else if (const auto size = take_size(left, values)) {
      result += *size;
    } else {
      throw Error(
          ErrorKind::kFailure,
          fmt::format("the model was exported for inputs with `{}`, which accel does not know how to check",
                      guard))
          .hint("export the model with sizes that do not depend on each other");
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> input_checks(const json& program) {
  const json& module = program.at("graph_module");
  const json& ranges = program.at("range_constraints");
  if (!ranges.is_object()) throw_corrupt("the program has no ranges of sizes");
  std::vector<std::string> lines;
  struct Base {
    std::string variable;  // It has the value of the symbol.
    bool is_size = true;   // It is the size of a dimension itself.
  };
  std::map<std::string, Base> first;  // Maps a symbol to where its value comes from.
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
      const std::string size = fmt::format("__size_{}", count++);
      const std::string where =
          fmt::format("input '{}' has {{}} in dimension {}, and the model was exported for ", input, d);
      lines.push_back(fmt::format("{} = torch.size({}, {})", size, value, d));
      if (sizes[d].contains("as_int")) {
        const auto fixed = ckpt::pt2_integer(sizes[d].at("as_int"));
        raise_unless(fmt::format("torch.eq({}, {})", size, fixed), size,
                     where + fmt::format("{} alone", fixed), lines);
        continue;
      }
      const auto form = linear_size_of(sizes[d].at("as_expr").at("expr_str").get<std::string>());
      if (!form) {
        throw Error(ErrorKind::kFailure,
                    fmt::format("dimension {} of input '{}' is computed from other sizes, which accel "
                                "does not import",
                                d, input))
            .hint("export the model with sizes that are multiples of others, or do not depend on each other");
      }
      std::string base = size;
      if (!form->is_symbol()) {
        base += "_base";
        raise_unless(fmt::format("torch.eq(torch.remainder(torch.sub({}, {}), {}), 0)", size, form->offset,
                                 form->factor),
                     size, where + form->text(), lines);
        lines.push_back(fmt::format("{} = torch.floordiv(torch.sub({}, {}), {})", base, size, form->offset,
                                    form->factor));
      }
      if (const auto [known, fresh] = first.emplace(form->symbol, Base{base, form->is_symbol()}); !fresh) {
        raise_unless(fmt::format("torch.eq({}, {})", base, known->second.variable), size,
                     where + (form->is_symbol() && known->second.is_size
                                  ? "as many as in another dimension of the inputs"
                                  : "another that fits the other dimensions of the inputs"),
                     lines);
        continue;
      }
      const SizeRange bounds = range_of(ranges, form->symbol);
      if (bounds.least && *bounds.least > kTakenForGranted)
        raise_unless(fmt::format("torch.ge({}, {})", base, *bounds.least), size,
                     where + fmt::format("at least {}", form->size_at(*bounds.least)), lines);
      if (bounds.most)
        raise_unless(fmt::format("torch.le({}, {})", base, *bounds.most), size,
                     where + fmt::format("at most {}", form->size_at(*bounds.most)), lines);
    }
  }
  for (const json& guard : program.value("guards_code", json::array())) {
    const auto text = guard.get<std::string>();
    lines.push_back(fmt::format("if {}:", condition_of(text, module.at("graph").at("tensor_values"))));
    lines.emplace_back("  pass");
    lines.emplace_back("else:");
    lines.push_back(fmt::format(
        "  ops.prim.RaiseException({}, \"builtins.ValueError\")",
        literal_of(fmt::format("the sizes of the inputs are not those for which the model was exported: {}",
                               text))));
  }
  return lines;
}

}  // namespace accel
