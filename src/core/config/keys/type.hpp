#pragma once

namespace accel::config {

/// What a key of the configuration may hold.
enum class Type {
  kBool,
  kInt,
  kNumber,
  kString,
  kStrings,   ///< A list of strings, or one string with commas.
  kNumbers,   ///< A list of numbers.
  kTexts,     ///< A map from texts to texts, which the user chooses; its order counts.
  kSections,  ///< A list of sections of texts.
  kScalar,    ///< A bool, number or string, kept as text.
  kAny,       ///< It is not checked: the key belongs to a system that accel does not have.
};

}  // namespace accel::config
