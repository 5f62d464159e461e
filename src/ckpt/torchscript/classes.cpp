#include "ckpt/torchscript/classes.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace accel::ckpt {
namespace {

std::string_view next_line(std::string_view& source) {
  const std::size_t end = source.find('\n');
  const std::string_view line = source.substr(0, end);
  source.remove_prefix(end == std::string_view::npos ? source.size() : end + 1);
  return line;
}

// The strings in a list such as `["a", "b", ]`.
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

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

// The rest of a line that begins with `start`.
std::optional<std::string_view> after(std::string_view line, std::string_view start) {
  if (!line.starts_with(start)) return std::nullopt;
  return line.substr(start.size());
}

// Reads `name : type`, or `__annotations__["0"] = type` for a name that is not an identifier.
void add_type(std::string_view line, ScriptClass& type) {
  if (const auto quoted = after(line, "  __annotations__[\"")) {
    const std::size_t end = quoted->find("\"] = ");
    if (end != std::string_view::npos)
      type.types.emplace(quoted->substr(0, end), quoted->substr(end + std::string_view("\"] = ").size()));
    return;
  }
  const std::size_t colon = line.find(" : ");
  if (colon == std::string_view::npos || !line.starts_with("  ") || !is_name(line.substr(2, colon - 2)))
    return;
  type.types.emplace(line.substr(2, colon - 2), line.substr(colon + 3));
}

class Parser {
 public:
  std::map<std::string, ScriptClass> parse(std::string_view source) {
    while (!source.empty()) read_line(next_line(source));
    end_class();
    return std::move(classes_);
  }

 private:
  void read_line(std::string_view line) {
    if (const auto head = after(line, "class ")) {
      begin_class(*head);
    } else if (class_ != nullptr && !continues_method(line)) {
      read_member(line);
    }
  }

  // A method's lines are indented deeper than its `def`.
  bool continues_method(std::string_view line) {
    if (class_->methods.empty() || !in_method_) return false;
    in_method_ = line.starts_with("   ") || line.empty();
    if (in_method_) class_->methods.back().source.append(line).append("\n");
    return in_method_;
  }

  void begin_class(std::string_view head) {
    end_class();
    const std::size_t end = head.find_first_of("(:");
    class_ = &classes_[std::string(head.substr(0, end))];
    *class_ = {};
    class_->is_module = end != std::string_view::npos && head.substr(end).starts_with("(Module)");
  }

  void end_class() {
    if (class_ != nullptr) {
      std::erase_if(class_->methods, [&](const ScriptMethod& method) {
        return std::find(hooks_.begin(), hooks_.end(), method.name) != hooks_.end();
      });
    }
    class_ = nullptr;
    hooks_.clear();
    in_method_ = false;
  }

  void read_member(std::string_view line) {
    if (const auto names = after(line, "  __parameters__ = [")) {
      class_->parameters = strings_of(*names);
    } else if (const auto buffers = after(line, "  __buffers__ = [")) {
      class_->buffers = strings_of(*buffers);
    } else if (line.starts_with("  __forward_pre_hooks__ = [") ||
               line.starts_with("  __forward_hooks__ = [")) {
      for (std::string& name : strings_of(line.substr(line.find('[')))) hooks_.push_back(std::move(name));
    } else if (const auto method = after(line, "  def ")) {
      class_->methods.push_back(
          {std::string(method->substr(0, method->find('('))), std::string(line) + "\n"});
      in_method_ = true;
    } else {
      add_type(line, *class_);
    }
  }

  std::map<std::string, ScriptClass> classes_;
  ScriptClass* class_ = nullptr;
  std::vector<std::string> hooks_;
  bool in_method_ = false;
};

}  // namespace

std::map<std::string, ScriptClass> parse_script_classes(std::string_view source) {
  return Parser().parse(source);
}

}  // namespace accel::ckpt
