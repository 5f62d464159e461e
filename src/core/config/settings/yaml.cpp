#include "core/config/settings/yaml.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <optional>
#include <sstream>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::config {
namespace {

// Aliases can repeat a node exponentially often, or make it its own child.
constexpr int kMaxDepth = 32;
constexpr int kMaxNodes = 100'000;

class Converter {
 public:
  explicit Converter(const Origin& source) : source_(source) {}

  [[nodiscard]] Origin at(const YAML::Mark& mark) const {
    Origin origin = source_;
    if (origin.layer == Origin::Layer::kFile && !mark.is_null()) {
      origin.line = mark.line + 1;
      origin.column = mark.column + 1;
    }
    return origin;
  }

  YamlNode convert(const YAML::Node& node, int depth) {
    YamlNode result;
    result.origin = at(node.Mark());
    if (depth > kMaxDepth || ++nodes_ > kMaxNodes) {
      throw Error(ErrorKind::kUsage, fmt::format("{}: nested or repeated too often", text_of(result.origin)));
    }
    if (node.IsScalar()) {
      result.kind = YamlNode::Kind::kScalar;
      result.text = node.Scalar();
      result.quoted = node.Tag() == "!";
    } else if (node.IsSequence()) {
      result.kind = YamlNode::Kind::kSequence;
      for (const YAML::Node& item : node) result.items.push_back(convert(item, depth + 1));
    } else if (node.IsMap()) {
      result.kind = YamlNode::Kind::kMap;
      for (const auto& entry : node) {
        const Origin key_origin = at(entry.first.Mark());
        if (!entry.first.IsScalar()) {
          throw Error(ErrorKind::kUsage, fmt::format("{}: a key must be a plain word", text_of(key_origin)));
        }
        result.entries.push_back({entry.first.Scalar(), key_origin, convert(entry.second, depth + 1)});
      }
    }
    return result;
  }

 private:
  const Origin& source_;
  int nodes_ = 0;
};

/// Records where the last document begins.
class DocumentStarts final : public YAML::EventHandler {
 public:
  [[nodiscard]] const YAML::Mark& last() const { return last_; }

  void OnDocumentStart(const YAML::Mark& mark) override { last_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnAlias(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnScalar(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                const std::string& /*value*/) override {}
  void OnSequenceStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                       YAML::EmitterStyle::value /*style*/) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {}
  void OnMapEnd() override {}

 private:
  YAML::Mark last_;
};

/// Where a second document begins. No more than two are parsed, because yaml-cpp reads an unopened closing
/// bracket as an endless row of empty documents.
std::optional<YAML::Mark> second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  if (!parser.HandleNextDocument(starts) || !parser.HandleNextDocument(starts)) return std::nullopt;
  return starts.last();
}

/// The number, from 0, of a line that yaml-cpp would drop silently: before a document it takes every line
/// that begins with % for a directive.
std::optional<int> unknown_directive(std::string_view text) {
  int number = 0;
  for (const std::string& line : split(text, '\n')) {
    const std::string_view rest = trim(line);
    const bool is_directive = rest.starts_with("%YAML ") || rest.starts_with("%TAG ");
    if (line.starts_with('%') && !is_directive) return number;
    if (!rest.empty() && !rest.starts_with('#') && !is_directive) return std::nullopt;
    ++number;
  }
  return std::nullopt;
}

}  // namespace

YamlNode parse_yaml(std::string_view text, const Origin& source) {
  Converter converter(source);
  if (const std::optional<int> line = unknown_directive(text)) {
    YAML::Mark mark;
    mark.line = *line;
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: a line that begins with % is a directive of YAML, and this one is unknown",
                            text_of(converter.at(mark))));
  }
  try {
    const std::string copy(text);
    const std::optional<YAML::Mark> second = second_document(copy);
    if (second) {
      throw Error(ErrorKind::kUsage, fmt::format("{}: expected one YAML document, found a second one",
                                                 text_of(converter.at(*second))));
    }
    const YAML::Node document = YAML::Load(copy);
    if (!document.IsDefined()) {
      YamlNode nothing;
      nothing.origin = converter.at({});
      return nothing;
    }
    return converter.convert(document, 0);
  } catch (const YAML::Exception& error) {
    throw Error(ErrorKind::kUsage, fmt::format("{}: {}", text_of(converter.at(error.mark)), error.msg));
  }
}

}  // namespace accel::config
