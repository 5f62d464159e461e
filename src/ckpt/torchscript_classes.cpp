#include "ckpt/torchscript_classes.hpp"

#include "base/error.hpp"

namespace accel::ckpt {
namespace {

std::string_view next_line(std::string_view& source) {
  const std::size_t end = source.find('\n');
  const std::string_view line = source.substr(0, end);
  source.remove_prefix(end == std::string_view::npos ? source.size() : end + 1);
  return line;
}

// The strings of `["a", "b", ]`.
std::vector<std::string> strings_of(std::string_view text) {
  std::vector<std::string> strings;
  while (true) {
    const std::size_t open = text.find_first_of("\"'");
    if (open == std::string_view::npos) return strings;
    const std::size_t close = text.find(text[open], open + 1);
    if (close == std::string_view::npos)
      throw Error(ErrorKind::kCorrupt, "the code of the archive has a list of names that does not end");
    strings.emplace_back(text.substr(open + 1, close - open - 1));
    text.remove_prefix(close + 1);
  }
}

}  // namespace

std::map<std::string, ScriptClass> parse_script_classes(std::string_view source) {
  constexpr std::string_view kClass = "class ";
  constexpr std::string_view kParameters = "  __parameters__ = [";
  constexpr std::string_view kBuffers = "  __buffers__ = [";
  std::map<std::string, ScriptClass> classes;
  ScriptClass* current = nullptr;
  while (!source.empty()) {
    const std::string_view line = next_line(source);
    if (line.starts_with(kClass)) {
      const std::string_view head = line.substr(kClass.size());
      const std::size_t end = head.find_first_of("(:");
      current = &classes[std::string(head.substr(0, end))];
      *current = {};
      current->is_module = end != std::string_view::npos && head.substr(end).starts_with("(Module)");
    } else if (current != nullptr && line.starts_with(kParameters)) {
      current->parameters = strings_of(line.substr(kParameters.size()));
    } else if (current != nullptr && line.starts_with(kBuffers)) {
      current->buffers = strings_of(line.substr(kBuffers.size()));
    }
  }
  return classes;
}

}  // namespace accel::ckpt
