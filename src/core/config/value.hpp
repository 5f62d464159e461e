#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace accel::core {

/// Where a value was written, so that an error can point at it.
struct Origin {
  /// In order of precedence.
  enum class Layer { kFlag, kFile, kEnvironment };

  Layer layer = Layer::kFile;
  std::string source;  ///< The file's name, the flag as it was given, or the environment variable's name.
  int line = 0;        ///< From 1; 0 where there are no lines.
  int column = 0;      ///< From 1.
};

/// "gpt.yaml:3:5", "--set training.max_steps=5", "environment variable FSDP_VERSION".
std::string text_of(const Origin& origin);

/// A checked value. std::monostate is YAML's null: the key is there and asks for the default.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::string>,
                           std::vector<double>>;

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
  /// Takes from `lower` what is not set here. A null here hides the values below it there, sections included.
  void add_below(const Settings& lower);

  /// The setting, null included; nullptr if nothing names the path.
  [[nodiscard]] const Setting* find(std::string_view path) const;
  /// Whether any value but null is set at `section` or below it.
  [[nodiscard]] bool has(std::string_view section) const;
  /// The value if it is set and not null. The schema has checked that it is a T.
  template <class T>
  [[nodiscard]] std::optional<T> get(std::string_view path) const {
    const Setting* setting = find(path);
    if (setting == nullptr) return std::nullopt;
    const T* value = std::get_if<T>(&setting->value);
    return value == nullptr ? std::nullopt : std::optional<T>(*value);
  }
  /// "gpt.yaml:3:5: " for an error about `path`; of a section, where one of its values is set. Empty if
  /// nobody set it.
  [[nodiscard]] std::string where(std::string_view path) const;

  [[nodiscard]] const Map& map() const { return map_; }

 private:
  Map map_;
};

}  // namespace accel::core
