#include "import/statements.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace accel {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const GraphNode& node, const std::string& what, const std::string& hint = "") {
  throw Error(ErrorKind::kFailure, fmt::format("{}: {}", place_of(node), what)).hint(hint);
}

bool draws_numbers(std::string_view op) {
  constexpr std::array<std::string_view, 14> kNames = {
      "bernoulli",    "bernoulli_", "rand",   "rand_like", "randn",    "randn_like",  "randint",
      "randint_like", "randperm",   "normal", "normal_",   "uniform_", "multinomial", "exponential_"};
  return std::find(kNames.begin(), kNames.end(), op) != kNames.end();
}

std::string number_of(double value) {
  if (std::isinf(value)) return value > 0 ? "float(\"inf\")" : "float(\"-inf\")";
  if (std::isnan(value)) return "float(\"nan\")";
  std::string text = fmt::format("{}", value);  // The shortest text that gives the same number.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string integer_of(const json& value) { return std::to_string(ckpt::pt2_integer(value)); }

/// A float of the schema: infinities and NaN are strings in JSON.
double float_of(const json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto text = value.get<std::string>();
  if (text == "Infinity") return INFINITY;
  if (text == "-Infinity") return -INFINITY;
  if (text == "NaN") return NAN;
  throw_corrupt(fmt::format("the graph has the number '{}'", text));
}

/// c10's number of a dtype, from torch.export's.
int scalar_type_of(std::int64_t number) {
  // Unsigned types of more than 8 bits and those of 8 bits with an exponent come later in c10.
  constexpr std::array<std::pair<int, int>, 21> kNumbers = {
      {{1, 0},   {2, 1},   {3, 2},   {4, 3},   {5, 4},   {6, 5},   {7, 6},
       {8, 7},   {9, 8},   {10, 9},  {11, 10}, {12, 11}, {13, 15}, {28, 27},
       {29, 24}, {30, 23}, {31, 26}, {32, 25}, {33, 44}, {34, 28}, {35, 29}}};
  for (const auto& [schema, c10] : kNumbers) {
    if (schema == number) return c10;
  }
  throw Error(ErrorKind::kFailure,
              fmt::format("dtype {} of the schema of torch.export is not known", number));
}

const char* memory_format_of(std::int64_t number) {
  // contiguous_format, channels_last, channels_last_3d, preserve_format.
  constexpr std::array<const char*, 4> kFormats = {"0", "2", "3", "1"};
  if (number < 1 || number > 4) throw_corrupt(fmt::format("the graph has the memory format {}", number));
  return kFormats[static_cast<std::size_t>(number - 1)];
}

/// The function of TorchScript for a function of Python on symbolic numbers.
std::optional<std::string> function_on_numbers(std::string_view target) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 23> kFunctions = {{
      {"_operator.add", "torch.add"},
      {"_operator.sub", "torch.sub"},
      {"_operator.mul", "torch.mul"},
      {"_operator.floordiv", "torch.floordiv"},
      {"_operator.mod", "torch.remainder"},
      {"_operator.truediv", "torch.div"},
      {"_operator.neg", "torch.neg"},
      {"_operator.eq", "torch.eq"},
      {"_operator.ne", "torch.ne"},
      {"_operator.lt", "torch.lt"},
      {"_operator.le", "torch.le"},
      {"_operator.gt", "torch.gt"},
      {"_operator.ge", "torch.ge"},
      {"_operator.and_", "torch.__and__"},
      {"_operator.or_", "torch.__or__"},
      {"_operator.not_", "torch.__not__"},
      {"torch.sym_not", "torch.__not__"},
      {"torch.sym_max", "ops.prim.max"},
      {"torch.sym_min", "ops.prim.min"},
      {"torch.sym_float", "float"},
      {"torch.sym_int", "int"},
      {"math.ceil", "torch.ceil"},
      {"math.floor", "torch.floor"},
  }};
  for (const auto& [python, script] : kFunctions) {
    if (python == target) return std::string(script);
  }
  return std::nullopt;
}

/// "linear" of "torch.ops.aten.linear.default".
std::string operator_of(const GraphNode& node) {
  constexpr std::string_view kAten = "torch.ops.aten.";
  // transformers records its experts with it where the parameters are not of bfloat16; the arguments are the
  // same.
  if (node.target == "torch.ops.transformers.grouped_mm_fallback.default") return "_grouped_mm";
  if (!node.target.starts_with(kAten)) {
    const bool is_higher = node.target.starts_with("torch.ops.higher_order.");
    const char* hint =
        is_higher ? "compute both sides and choose with torch.where, write a loop of a fixed length, or "
                    "train the model as TorchScript (torch.jit.script), which keeps control flow"
                  : "write it with torch's own operators";
    const bool is_of_sizes = node.target.starts_with("_operator.") || node.target.starts_with("torch.sym_") ||
                             node.target.starts_with("torch._sym_");
    if (is_of_sizes) hint = "compute it with tensors, or export the model for one size";
    refuse(node,
           is_higher     ? "control flow and other functions of functions are not imported"
           : is_of_sizes ? "this arithmetic of sizes is not imported"
                         : "only operators of the namespace aten are imported",
           hint);
  }
  const std::string name(operator_in(node.target));
  if (!is_identifier(name)) throw_corrupt(fmt::format("the graph has an operator '{}'", node.target));
  return name;
}

const json* input_named(const GraphNode& node, std::string_view name) {
  for (const json& input : node.document->at("inputs")) {
    if (input.at("name") == name) return &input;
  }
  return nullptr;
}

bool is_number(const json& argument) { return argument.contains("as_float") || argument.contains("as_int"); }

/// Whether the argument says that the module is training.
bool is_flag(const GraphNode& node, std::string_view argument) {
  if (argument != "train" && argument != "training" && argument != "use_input_stats") return false;
  // Without running statistics those of the batch are used in either mode.
  const json* mean = input_named(node, "running_mean");
  const bool is_norm = argument == "use_input_stats" || node.target.starts_with("torch.ops.aten.batch_norm.");
  return !is_norm || (mean != nullptr && !mean->at("arg").contains("as_none"));
}

std::string list_of(const std::vector<std::string>& items) {
  return fmt::format("[{}]", fmt::join(items, ", "));
}

}  // namespace

bool is_identifier(std::string_view name) {
  constexpr std::array<std::string_view, 36> kKeywords = {
      "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
      "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
      "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
      "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield",    "print"};
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }) &&
         std::find(kKeywords.begin(), kKeywords.end(), name) == kKeywords.end();
}

std::string identifier_of(std::string_view name) {
  constexpr std::array<std::string_view, 14> kTaken = {
      "self", "torch", "ops",  "CONSTANTS", "annotate", "getattr", "uninitialized",
      "int",  "float", "bool", "len",       "min",      "max",     "range"};
  std::string text(name);
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  // Names that begin with two underscores, or are a number behind underscores, are those of this writer.
  const bool is_ours = text.starts_with("__") || text.find_first_not_of("_0123456789") == std::string::npos;
  if (is_ours || !is_identifier(text) || std::find(kTaken.begin(), kTaken.end(), text) != kTaken.end())
    text = "v_" + text;
  return text;
}

std::string literal_of(std::string_view text) { return json(text).dump(); }

StatementWriter::StatementWriter(const ExportedGraph& graph) : graph_(graph) {
  for (const GraphNode& node : graph.nodes) look_for_training(node);
}

void StatementWriter::look_for_training(const GraphNode& node) {
  const json& inputs = node.document->at("inputs");
  if (const auto at = position_of_block(node)) {
    for (const GraphNode& inner : read_subgraph(inputs.at(*at).at("arg").at("as_graph").at("graph")).nodes)
      look_for_training(inner);
    return;
  }
  for (const json& input : inputs) {
    if (is_flag(node, input.at("name").get<std::string>()) && input.at("arg") == json{{"as_bool", true}})
      trains_ = true;
  }
}

void StatementWriter::set_expressions(std::map<std::string, std::string> expressions) {
  expressions_ = std::move(expressions);
}

std::string StatementWriter::expression_of(const std::string& value) const {
  const auto alias = graph_.aliases.find(value);
  const std::string& name = alias == graph_.aliases.end() ? value : alias->second;
  const auto found = expressions_.find(name);
  return found == expressions_.end() ? identifier_of(name) : found->second;
}

std::string StatementWriter::argument_of(const json& argument) const {
  const auto [tag, content] = tagged(argument);
  const json& value = *content;
  const auto each = [&](const auto& text_of) {
    std::vector<std::string> items;
    for (const json& item : value) items.push_back(text_of(item));
    return list_of(items);
  };
  const auto tensor = [&](const json& item) { return expression_of(item.at("name").get<std::string>()); };
  const auto number = [&](const json& item) {
    if (item.contains("as_name")) return expression_of(item.at("as_name").get<std::string>());
    const json& fixed = *tagged(item).second;
    if (fixed.is_boolean()) return std::string(fixed.get<bool>() ? "True" : "False");
    return fixed.is_number_integer() ? integer_of(fixed) : number_of(float_of(fixed));
  };
  const auto boolean = [](const json& item) { return std::string(item.get<bool>() ? "True" : "False"); };
  if (tag == "as_none") return "None";
  if (tag == "as_tensor") return tensor(value);
  if (tag == "as_tensors") return each(tensor);
  if (tag == "as_optional_tensors") {
    return fmt::format("annotate(List[Optional[Tensor]], {})", each([&](const json& item) {
                         return item.contains("as_tensor") ? tensor(item.at("as_tensor"))
                                                           : std::string("None");
                       }));
  }
  if (tag == "as_int") return integer_of(value);
  if (tag == "as_ints") return each(integer_of);
  if (tag == "as_sym_int" || tag == "as_sym_bool" || tag == "as_sym_float") return number(value);
  if (tag == "as_sym_ints") return each(number);
  if (tag == "as_float") return number_of(float_of(value));
  if (tag == "as_floats") return each([](const json& item) { return number_of(float_of(item)); });
  if (tag == "as_bool") return boolean(value);
  if (tag == "as_bools") return each(boolean);
  if (tag == "as_string") return literal_of(value.get<std::string>());
  if (tag == "as_scalar_type") return std::to_string(scalar_type_of(ckpt::pt2_integer(value)));
  if (tag == "as_layout" && value == 7) return "0";  // torch.strided
  if (tag == "as_memory_format") return memory_format_of(ckpt::pt2_integer(value));
  if (tag == "as_device") {
    const json& index = value.at("index");
    return fmt::format("torch.device(\"{}{}\")", value.at("type").get<std::string>(),
                       index.is_null() ? "" : fmt::format(":{}", ckpt::pt2_integer(index)));
  }
  throw Error(ErrorKind::kFailure, fmt::format("an argument of kind '{}' is not imported", tag));
}

// A flag that was true during the export becomes the module's own. A flag that was false while others were
// true belongs to a part of the model that is meant to stay in evaluation mode.
std::string StatementWriter::flag_of(const GraphNode& node, const json& input) const {
  if (input.at("arg") == json{{"as_bool", true}}) return "self.training";
  if (!trains_) {
    refuse(node,
           "the model was exported in evaluation mode, and would be trained without dropout and with fixed "
           "statistics",
           "call model.train() before torch.export.export");
  }
  return argument_of(input.at("arg"));
}

std::vector<std::string> StatementWriter::block_of(const GraphNode& node, std::size_t at) {
  constexpr int kDeepest = 20;
  if (++depth_ > kDeepest) refuse(node, "graphs nest too deeply");
  const json& inputs = node.document->at("inputs");
  const Subgraph inner = read_subgraph(inputs.at(at).at("arg").at("as_graph").at("graph"));
  // Values within the graph are not those of the method, even if they have their names.
  std::map<std::string, std::string> own;
  for (std::size_t i = 0; i < inner.inputs.size(); ++i)
    own[inner.inputs[i]] = argument_of(inputs.at(at + 1 + i).at("arg"));
  const std::string prefix = fresh_name() + "_";
  for (const GraphNode& statement : inner.nodes) {
    for (const GraphValue& value : statement.outputs) own[value.name] = prefix + identifier_of(value.name);
  }
  std::swap(expressions_, own);
  std::vector<std::string> lines;
  for (const GraphNode& statement : inner.nodes) {
    for (std::string& line : statements_of(statement)) lines.push_back(std::move(line));
  }
  std::vector<std::string> results;
  for (const std::string& name : inner.outputs) results.push_back(expression_of(name));
  std::swap(expressions_, own);
  --depth_;
  if (results.size() != node.outputs.size())
    refuse(node, "the graph within it has another number of outputs");
  for (std::size_t i = 0; i < results.size(); ++i)
    lines.push_back(fmt::format("{} = {}", expression_of(node.outputs[i].name), results[i]));
  return lines;
}

std::vector<std::string> StatementWriter::within(const char* type, const std::string& arguments,
                                                 const std::vector<std::string>& lines) {
  const std::string context = fresh_name();
  std::vector<std::string> block = {fmt::format("{} = {}.__new__({})", context, type, type),
                                    fmt::format("{} = ({}).__init__({})", fresh_name(), context, arguments),
                                    fmt::format("with {}:", context)};
  for (const std::string& line : lines) block.push_back("  " + line);
  if (lines.empty()) block.emplace_back("  pass");
  return block;
}

std::vector<std::string> StatementWriter::gradients_set(const GraphNode& node) {
  const json& inputs = node.document->at("inputs");
  const bool enabled = inputs.at(0).at("arg").at("as_bool").get<bool>();
  if (enabled && depth_ == 0) {
    refuse(node,
           "the model was exported under torch.no_grad(), which hides where it computes without gradients",
           "call torch.export.export outside of no_grad");
  }
  const std::vector<std::string> lines = block_of(node, 1);
  return enabled ? lines : within(kNoGradClass, "", lines);
}

std::vector<std::string> StatementWriter::autocast_set(const GraphNode& node) {
  const json& inputs = node.document->at("inputs");
  // The last setting, whether casts are cached, changes no value.
  const std::string arguments =
      fmt::format("{}, {}, {}, ", argument_of(inputs.at(0).at("arg")), argument_of(inputs.at(1).at("arg")),
                  argument_of(inputs.at(2).at("arg")));
  return within(kAutocastClass, arguments, block_of(node, 4));
}

std::vector<std::string> StatementWriter::statements_of(const GraphNode& node) {
  if (node.target == kGradientsSet) return gradients_set(node);
  if (node.target == kAutocastSet) return autocast_set(node);
  std::vector<std::string> lines = lines_of(node);
  const std::string line_of_author = author_line_of(node);
  // TorchScript takes "# type:" for a part of the code.
  if (line_of_author.empty() || line_of_author.starts_with("type:")) return lines;
  for (std::string& line : lines) line += "  # " + line_of_author;
  return lines;
}

std::vector<std::string> StatementWriter::lines_of(const GraphNode& node) {
  const json& inputs = node.document->at("inputs");
  std::string function;
  std::string op;
  if (const auto known = function_on_numbers(node.target)) {
    function = *known;
  } else {
    op = operator_of(node);
    if (draws_numbers(op)) random_.push_back(place_of(node));
    if (op == "_assert_tensor_metadata") return {};
    if (op == "_assert_scalar" || op == "_assert_async") {
      if (op == "_assert_async") return {};
      return {fmt::format("if {}:", argument_of(inputs.at(0).at("arg"))), "  pass", "else:",
              fmt::format("  ops.prim.RaiseException({}, \"builtins.RuntimeError\")",
                          argument_of(inputs.at(1).at("arg")))};
    }
    if (op == "sym_size") op = "size";
    if (op == "sym_numel") op = "numel";
    if (op == "sym_storage_offset") op = "storage_offset";
    function = "torch." + op;
  }
  std::vector<std::string> lines;
  std::vector<std::string> arguments;
  constexpr int kKeyword = 2;
  for (const json& input : inputs) {
    const auto name = input.at("name").get<std::string>();
    std::string text;
    if (op == "scaled_dot_product_attention" && name == "dropout_p" && input.at("arg").contains("as_float") &&
        float_of(input.at("arg").at("as_float")) > 0) {
      text = fresh_name();
      lines = {"if self.training:", fmt::format("  {} = {}", text, argument_of(input.at("arg"))),
               "else:", fmt::format("  {} = 0.", text)};
    } else if (is_flag(node, name) && input.at("arg").contains("as_bool")) {
      text = flag_of(node, input);
    } else {
      text = argument_of(input.at("arg"));
      if (name == "self" && is_number(input.at("arg")) && input_named(node, "alpha") != nullptr)
        text = fmt::format("torch.tensor({})", text);  // `add` of a number and a tensor has no alpha.
    }
    const bool is_keyword = input.contains("kind") && input.at("kind") == kKeyword;
    if (is_keyword && !is_identifier(name))
      throw_corrupt(fmt::format("the graph has an argument named '{}'", name));
    arguments.push_back(is_keyword ? fmt::format("{}={}", name, text) : text);
  }
  std::string targets;
  for (const GraphValue& output : node.outputs) targets += expression_of(output.name) + ", ";
  if (node.outputs.size() == 1 && !node.gives_list) targets.resize(targets.size() - 2);
  while (targets.ends_with(' ')) targets.pop_back();
  std::string call = fmt::format("{}({})", function, fmt::join(arguments, ", "));
  std::string line = targets.empty() ? call : fmt::format("{} = {}", targets, call);
  if (node.counts_batches) {
    lines.insert(lines.end(), {"if self.training:", "  " + line, "else:", "  pass"});
  } else {
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace accel
