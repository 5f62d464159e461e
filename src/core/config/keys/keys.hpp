#pragma once

#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/keys/member.hpp"
#include "core/config/keys/type.hpp"

namespace accel::config {

inline constexpr std::string_view kEverything = "*";
/// No value is supported yet.
inline constexpr std::string_view kNothing;

/// What is true of a key; a set of these.
enum Trait : unsigned {
  kLauncher = 1U << 0U,   ///< The launcher acts on it, for a program too. Without this only the engine does.
  kNoNumbers = 1U << 1U,  ///< The numbers of a training that goes on do not depend on it, but see numbers_if.
  kOneMachine = 1U << 2U,  ///< The machines of a run may differ in it.
  kRequired = 1U << 3U,    ///< It has no default.
  /// resolve/ computes the member from this setting and others. Without this it is the setting.
  kComputed = 1U << 4U,
  kOnlyPassed = 1U << 5U,  ///< Accelerate passes `variable` to programs, and does not read it as a setting.
};

/// When a key has no effect on a training.
struct Idle {
  std::string_view why;
  bool (*applies)(const Config&) = nullptr;  ///< The training is set.
};

/// One key of the configuration. Parsing, checking, `config.resolved.json`, flags, environment variables,
/// "did you mean", the JSON Schema and the reference of keys are made from the tables of these and nothing
/// else.
struct Key {
  std::string_view path;  ///< The dotted path, without the prefixes of section_prefix().
  Type type = Type::kString;
  /// What it is, without a period at the end. A flag shows it up to the first period.
  std::string_view help = {};
  Member member = {};                    ///< The value in Config that it sets, if it is one.
  std::string_view choices = {};         ///< The valid values, as "a|b|c"; empty for any.
  std::string_view built = kEverything;  ///< The values that are supported.
  /// The system, not part of accel, that values outside `built` ask for. If it depends on the value, it is
  /// "VALUE=SYSTEM|VALUE=SYSTEM".
  std::string_view system = {};
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double above = -std::numeric_limits<double>::infinity();  ///< The value must be greater.
  double below = std::numeric_limits<double>::infinity();   ///< The value must be less.
  /// Why a training accepts the key although it has no effect; empty if it has one.
  std::string_view no_effect = {};
  Idle idle = {};
  std::string_view standard = {};  ///< The default in words, if the member's own value does not say it.
  std::string_view flag = {};      ///< A flag of `accel launch` with its metavariable, "--log-dir DIR".
  /// The environment variable by which Accelerate passes the key to a script.
  std::string_view variable = {};
  /// What `accelerate launch` passes if nobody sets the key. Null: nothing.
  const char* passed = nullptr;
  /// When the numbers of a training depend on a key with kNoNumbers. The training is set.
  bool (*numbers_if)(const Config&) = nullptr;
  unsigned traits = 0;

  [[nodiscard]] constexpr bool has(Trait trait) const { return (traits & trait) != 0; }
};

/// A table whose keys with a member have the type of the member.
template <std::size_t N>
constexpr std::array<Key, N> with_types_of_members(std::array<Key, N> keys) {
  for (Key& key : keys) {
    if (key.member.reach == nullptr || key.has(kComputed)) continue;
    const bool is_named_bool = key.member.type == Type::kBool && !key.choices.empty();
    key.type = is_named_bool ? Type::kString : key.member.type;
  }
  return keys;
}

/// The tables in this order, as one.
template <class... Tables>
constexpr auto concatenated(const Tables&... tables) {
  std::array<Key, (std::tuple_size_v<Tables> + ...)> all;
  auto at = all.begin();
  ((at = std::copy(tables.begin(), tables.end(), at)), ...);
  return all;
}

/// The tables: the keys of Accelerate and the `launch` section (run_keys.cpp), the `training` section
/// (training_keys.cpp), and keys of systems that accel does not have (foreign_keys.cpp).
std::span<const Key> run_keys();
std::span<const Key> training_keys();
std::span<const Key> foreign_keys();
/// The three tables in this order.
std::array<std::span<const Key>, 3> key_tables();
/// Values of the resolved configuration that no key sets by itself, under the names that they have there.
std::span<const Key> resolved_values_without_key();

/// The key of a path; nullptr if there is none.
const Key* find_key(std::string_view path);
/// The one key of accel whose path ends in this name, which may be written like a flag; nothing if there are
/// several.
std::optional<std::string> key_named_last(std::string_view name);
/// Whether `path` lies below `section`; "" is the top level.
bool is_below(std::string_view path, std::string_view section);
/// Whether keys lie below `path`; "" is the top level.
bool is_section(std::string_view path);
/// The names right below a section, sorted.
std::vector<std::string> names_in_section(std::string_view section);
/// The prefix that Accelerate puts before the keys of a section, such as "fsdp_", and that is optional here.
/// It is empty for a section without one.
std::string_view section_prefix(std::string_view section);
/// A key of a section without the section's prefix. A name that an earlier version of Accelerate wrote
/// becomes the present one.
std::string_view canonical_key(std::string_view section, std::string_view key);

/// Accelerate reads the variables of parallelism_config only if this one is "true".
inline constexpr const char* kUseParallelism = "ACCELERATE_USE_PARALLELISM_CONFIG";

}  // namespace accel::config
