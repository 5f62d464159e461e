#pragma once

#include <string>
#include <vector>

namespace accel {

/// What our exporters say about a model in its extra file `accel.json`; every part may be missing.
struct ModelNotes {
  std::vector<std::string> layer_classes;   ///< To wrap, if the configuration names none.
  std::vector<std::string> non_persistent;  ///< Buffers that are in the file, but in no state dict.
};

/// `text` is the extra file, empty if there is none. Throws Error (kUsage) if it is not what it should be.
ModelNotes parse_notes(const std::string& text);

}  // namespace accel
