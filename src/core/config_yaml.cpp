#include "core/config_yaml.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.hpp"

namespace accel::core {
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
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}: nested or repeated beyond reason", text_of(result.origin)));
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

}  // namespace

YamlNode parse_yaml(std::string_view text, const Origin& source) {
  Converter converter(source);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.empty()) {
      YamlNode nothing;
      nothing.origin = converter.at({});
      return nothing;
    }
    if (documents.size() > 1) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}: expected one YAML document, found {}",
                              text_of(converter.at(documents[1].Mark())), documents.size()));
    }
    return converter.convert(documents.front(), 0);
  } catch (const YAML::Exception& error) {
    throw Error(ErrorKind::kUsage, fmt::format("{}: {}", text_of(converter.at(error.mark)), error.msg));
  }
}

}  // namespace accel::core
