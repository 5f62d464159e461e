#pragma once

#include <array>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accel::config {

/// What a key of the configuration may hold.
enum class Type {
  kBool,
  kInt,
  kNumber,
  kString,
  kStrings,  ///< A list of strings, or one string with commas.
  kNumbers,  ///< A list of numbers.
  kTexts,    ///< A map from texts to texts, which the user chooses; its order counts.
  kScalar,   ///< A bool, number or string, kept as text.
  kAny,      ///< It is not checked: the key belongs to a system that accel does not have.
};

/// Who acts on a key. A value that the engine does not support does not prevent the launch of another
/// program.
enum class Reader { kLauncher, kEngine };

inline constexpr std::string_view kEverything = "*";
/// No value is supported yet.
inline constexpr std::string_view kNothing;

/// One key of the configuration. Parsing, checking and "did you mean" use the tables of these and nothing
/// else.
struct Field {
  std::string_view path;  ///< The dotted path, without the prefixes of section_prefix().
  Type type = Type::kString;
  std::string_view choices = {};         ///< The valid values, as "a|b|c"; empty for any.
  std::string_view built = kEverything;  ///< The values that are supported.
  Reader reader = Reader::kEngine;
  /// The system, not part of accel, that values outside `built` ask for. If it depends on the value, it is
  /// "VALUE=SYSTEM|VALUE=SYSTEM".
  std::string_view system = {};
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double above = -std::numeric_limits<double>::infinity();  ///< The value must be greater.
  double below = std::numeric_limits<double>::infinity();   ///< The value must be less.
  /// Why a training accepts the key although it has no effect; empty if it has one.
  std::string_view no_effect = {};
};

/// The tables: Accelerate's keys and the `launch` section (accelerate_keys.cpp), the `training` section
/// (training_keys.cpp), and keys of systems that accel does not have (foreign_keys.cpp).
std::span<const Field> accelerate_fields();
std::span<const Field> training_fields();
std::span<const Field> foreign_fields();
/// The three tables in this order.
std::array<std::span<const Field>, 3> field_tables();

/// The field of a path; nullptr if there is none.
const Field* find_field(std::string_view path);
/// Whether `path` lies below `section`; "" is the top level.
bool is_below(std::string_view path, std::string_view section);
/// Whether fields lie below `path`; "" is the top level.
bool is_section(std::string_view path);
/// The names right below a section, sorted.
std::vector<std::string> names_in_section(std::string_view section);
/// The prefix that Accelerate puts before the keys of a section, such as "fsdp_", and that is optional here.
/// It is empty for a section without one.
std::string_view section_prefix(std::string_view section);
/// A key of a section without the section's prefix. A name that an earlier version of Accelerate wrote
/// becomes the present one.
std::string_view canonical_key(std::string_view section, std::string_view key);

}  // namespace accel::config
