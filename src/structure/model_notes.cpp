#include "structure/model_notes.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel {

ModelNotes parse_notes(const std::string& text) {
  if (text.empty()) return {};
  try {
    const auto document = nlohmann::json::parse(text);
    return {document.value("layer_classes", std::vector<std::string>{}),
            document.value("non_persistent", std::vector<std::string>{})};
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the model file's accel.json is malformed: {}", without_json_tag(error.what())));
  }
}

}  // namespace accel
