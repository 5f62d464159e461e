#include "ckpt/torchscript/fingerprint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/pickle/document.hpp"
#include "ckpt/torch/file.hpp"

namespace accel::ckpt {
namespace {

constexpr std::uint64_t kCodeLimitBytes = std::uint64_t{256} << 20;
constexpr std::size_t kValueDepthLimit = 200;

/// `text` without the parts of names that torch adds when a class of that name exists: "___torch_mangle_12.".
std::string without_mangling(std::string_view text) {
  constexpr std::string_view kMangle = "___torch_mangle_";
  std::string plain;
  for (std::size_t at = text.find(kMangle); at != std::string_view::npos; at = text.find(kMangle)) {
    plain += text.substr(0, at);
    text.remove_prefix(at + kMangle.size());
    while (!text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) != 0)
      text.remove_prefix(1);
    if (text.starts_with('.') || text.starts_with('/')) text.remove_prefix(1);
  }
  return plain += text;
}

/// `code` with the constants of each class sorted. torch keeps them in a set, whose order is another one in
/// each process.
std::string with_sorted_constants(const std::string& code) {
  std::vector<std::string> lines = split(code, '\n');
  const auto is_constant = [](const std::string& line) {
    return line.starts_with("  ") && line.find(" : Final[") != std::string::npos;
  };
  for (auto begin = lines.begin(); begin != lines.end();) {
    begin = std::find_if(begin, lines.end(), is_constant);
    const auto end = std::find_if_not(begin, lines.end(), is_constant);
    std::sort(begin, end);
    begin = end;
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

bool is_part_of_name(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// Numbers the variables of each method by their places in it. torch numbers those of the methods of a file
/// on, and of which file a class is depends on the models that the process has exported before.
class Renumbering {
 public:
  /// One line of a definition.
  std::string of(const std::string& line) {
    if (line.starts_with("def ") || line.starts_with("  def ")) {
      places_.clear();
      is_in_method_ = true;
    }
    return is_in_method_ ? renumbered(line) : line;
  }

 private:
  std::string renumbered(const std::string& line) {
    std::string result;
    for (std::size_t at = 0; at < line.size();) {
      const std::size_t end = end_of_token(line, at);
      const std::string token = line.substr(at, end - at);
      const bool is_name = is_part_of_name(token.front()) &&
                           std::isdigit(static_cast<unsigned char>(token.front())) == 0 &&
                           (at == 0 || line[at - 1] != '.');
      result += is_name ? number(token) : token;
      at = end;
    }
    return result;
  }

  /// Tokens are names, numbers, texts in quotes, and other characters each for itself.
  static std::size_t end_of_token(const std::string& line, std::size_t at) {
    std::size_t end = at + 1;
    if (line[at] == '"') {
      while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
      return std::min(end + 1, line.size());
    }
    if (!is_part_of_name(line[at])) return end;
    while (end < line.size() && is_part_of_name(line[end])) ++end;
    return end;
  }

  /// A name without its digits, and its place among those that differ in them alone.
  std::string number(const std::string& name) {
    const std::string base = name.substr(0, name.find_last_not_of("0123456789") + 1);
    std::unordered_map<std::string, std::size_t>& places = places_[base];
    const std::size_t next = places.size();
    return fmt::format("{}#{}", base, places.try_emplace(name, next).first->second);
  }

  /// By a name without its digits, and by the name.
  std::unordered_map<std::string, std::unordered_map<std::string, std::size_t>> places_;
  bool is_in_method_ = false;
};

/// Adds the classes and functions of `code` to `parts`, each for itself: of which file they are depends on
/// the models that the process has exported before.
void add_definitions(const std::string& code, std::vector<std::string>& parts) {
  std::string part;
  Renumbering renumbering;
  for (const std::string& line : split(code, '\n')) {
    const bool begins = line.starts_with("class ") || line.starts_with("def ");
    if (begins && !part.empty()) parts.push_back(std::exchange(part, {}));
    if (begins) renumbering = {};
    if (!line.empty()) part += renumbering.of(line) + '\n';
  }
  parts.push_back(std::move(part));
}

/// Writes the plain values of a pickle as text: numbers, texts and containers of them, by the names of the
/// attributes that hold them.
class ValueWriter {
 public:
  std::string write(pickle::NodeRef root) {
    add(root, 0);
    return std::move(text_);
  }

 private:
  void add(pickle::NodeRef value, std::size_t depth) {
    if (depth > kValueDepthLimit)
      throw Error(ErrorKind::kCorrupt, "values nest too deep, or contain themselves");
    if (const auto boolean = value.boolean()) {
      text_ += *boolean ? "true;" : "false;";
    } else if (const auto integer = value.integer()) {
      text_ += fmt::format("{};", *integer);
    } else if (const auto real = value.real()) {
      text_ += fmt::format("{:a};", *real);
    } else if (const auto string = value.text()) {
      text_ += fmt::format("'{}';", *string);
    } else if (value.node() != nullptr) {
      add_node(value, depth);
    }
  }

  void add_node(pickle::NodeRef value, std::size_t depth) {
    if (const auto entries = value.mapping()) return add_entries(*entries, depth);
    if (const auto items = value.sequence()) {
      for (std::size_t i = 0; i < items->size(); ++i) add((*items)[i], depth + 1);
      return;
    }
    const auto call = value.call();
    if (!call) return;
    const auto name = call->callable().global();
    // A tensor is a call of torch.
    if (!name || name->module.starts_with("torch.") || !objects_.insert(value.id().index()).second) return;
    text_ += without_mangling(fmt::format("{}.{}:", name->module, name->name));
    if (const auto record = call->record()) return add_entries(*record, depth);
    const pickle::NodeList states = call->states();
    for (std::size_t i = 0; i < states.size(); ++i) add(states[i], depth + 1);
  }

  void add_entries(const pickle::NodePairs& entries, std::size_t depth) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto key = entries.key(i).text();
      if (key == "training") continue;
      if (key) text_ += fmt::format("{}=", *key);
      if (!key) add(entries.key(i), depth + 1);
      add(entries.value(i), depth + 1);
    }
  }

  std::string text_;
  std::unordered_set<std::uint32_t> objects_;  // The objects that are written already.
};

}  // namespace

std::uint32_t graph_fingerprint(ByteSource& archive) {
  const FileWindow window(archive);
  const TorchFile file(window);
  const std::string folder = file.zip().root().empty() ? "" : file.zip().root() + "/";
  std::vector<std::string> parts;
  for (const ZipEntry& entry : file.zip().entries()) {
    const std::string name = entry.name.substr(std::min(entry.name.size(), folder.size()));
    if (name.starts_with("code/") && name.ends_with(".py")) {
      add_definitions(
          with_sorted_constants(without_mangling(read_text_record(window, entry, kCodeLimitBytes))), parts);
    } else if (name.starts_with("constants/")) {
      parts.push_back(fmt::format("{} {:08x}", name, entry.crc32));
    }
  }
  // The order depends on the names of the classes.
  std::sort(parts.begin(), parts.end());
  const std::vector<std::byte> bytes = file.read_pickle_bytes();
  parts.push_back(ValueWriter().write(pickle::Document(bytes).root()));
  std::uint32_t crc = 0;
  for (const std::string& part : parts) crc = crc32(std::as_bytes(std::span(part)), crc);
  return crc;
}

}  // namespace accel::ckpt
