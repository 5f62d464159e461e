#pragma once

#include <string>
#include <vector>

namespace accel {

/// What our exporters write about a model into its extra file `accel.json`. Every part may be missing.
struct ModelNotes {
  std::vector<std::string> layer_classes;   ///< Classes to wrap if the configuration names none.
  std::vector<std::string> non_persistent;  ///< Buffers that are in the file, but not in a state dict.
};

/// Parses `text`, the content of the extra file, which is empty if there is no such file. Throws Error
/// (kUsage) if the text is malformed.
ModelNotes parse_notes(const std::string& text);

}  // namespace accel
