#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accel::core {

/// What a key of the configuration may hold.
enum class Type {
  kBool,
  kInt,
  kNumber,
  kString,
  kStrings,  ///< A list of strings, or one string with commas.
  kNumbers,  ///< A list of numbers.
  kScalar,   ///< A bool, number or string, kept as text.
  kAny,      ///< Not looked at: it belongs to a system that is not here.
};

/// Who acts on a key. What the engine cannot do yet is no obstacle to launching another program.
enum class Reader { kLauncher, kEngine };

inline constexpr std::string_view kEverything = "*";

/// One key of the configuration. The tables of these are all that parsing, checking and "did you mean" know.
struct Field {
  std::string_view path;  ///< Dotted, without the prefixes of section_prefix().
  Type type = Type::kString;
  std::string_view choices = {};         ///< "a|b|c": every value that has a meaning; empty: any.
  std::string_view built = kEverything;  ///< Those of them that work today.
  Reader reader = Reader::kEngine;
  std::string_view system = {};  ///< The system that other values than `built` ask for, if it is not ours.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double above = -std::numeric_limits<double>::infinity();  ///< Exclusive.
  double below = std::numeric_limits<double>::infinity();   ///< Exclusive.
};

/// The tables: Accelerate's keys and ours (config_schema_accelerate.cpp), the `training` section
/// (config_schema_training.cpp), and keys of systems that are not here (config_schema_foreign.cpp).
std::span<const Field> accelerate_fields();
std::span<const Field> training_fields();
std::span<const Field> foreign_fields();

/// The field of a path, or nullptr.
const Field* find_field(std::string_view path);
/// Whether fields lie below `path`; "" is the top level.
bool is_section(std::string_view path);
/// The names right below a section, sorted.
std::vector<std::string> names_in_section(std::string_view section);
/// The prefix that Accelerate puts before the keys of some sections and that is optional here ("fsdp_"), or
/// "".
std::string_view section_prefix(std::string_view section);

}  // namespace accel::core
