#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace accel::config {

/// Where a value was written, so that an error can point at it.
struct Origin {
  /// The layers are in order of precedence.
  enum class Layer { kFlag, kFile, kEnvironment };

  Layer layer = Layer::kFile;
  std::string source;  ///< The file's name, the flag as it was given, or the environment variable's name.
  int line = 0;        ///< The line counts from 1; it is 0 outside files.
  int column = 0;      ///< The column counts from 1.
};

/// "gpt.yaml:3:5", "--set training.max_steps=5", "environment variable FSDP_VERSION".
std::string text_of(const Origin& origin);

/// Pairs of texts in the order of the file.
using Texts = std::vector<std::pair<std::string, std::string>>;

/// A checked value. std::monostate is YAML's null: the key is set and asks for the default.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::string>,
                           std::vector<double>, Texts, std::vector<Texts>>;

/// "true", "8", "0.1", "bf16", "[a, b]": the spelling that schema tables and error messages use.
std::string text_of(const Value& value);

struct Setting {
  Value value;
  Origin origin;
};

/// Values by dotted path ("training.optimizer.lr"), from one source or merged from several.
class Settings {
 public:
  using Map = std::map<std::string, Setting, std::less<>>;

  /// Adds or replaces the value of one path.
  void set(std::string path, Setting setting) { map_.insert_or_assign(std::move(path), std::move(setting)); }
  /// Adds the values of `lower` that are not set here. A null here, of a section too, hides the values of
  /// `lower` at and below its path.
  void add_below(const Settings& lower);

  /// The setting, which may be null; nullptr if the path is not set.
  [[nodiscard]] const Setting* find(std::string_view path) const;
  /// Whether any value but null is set at `section` or below it.
  [[nodiscard]] bool has(std::string_view section) const;
  /// The value if it is set and not null. The schema has checked that it has the type T.
  template <class T>
  [[nodiscard]] std::optional<T> get(std::string_view path) const {
    const Setting* setting = find(path);
    if (setting == nullptr) return std::nullopt;
    const T* value = std::get_if<T>(&setting->value);
    return value == nullptr ? std::nullopt : std::optional<T>(*value);
  }
  /// Where `path` is set, as the start of an error: "gpt.yaml:3:5: ". For a section, where the first of its
  /// values is set. It is empty if nothing sets it.
  [[nodiscard]] std::string where(std::string_view path) const;

  [[nodiscard]] const Map& map() const { return map_; }

 private:
  Map map_;
};

}  // namespace accel::config
