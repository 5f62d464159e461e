#include "train/model/model_notes.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace accel::train {

ModelNotes parse_notes(const std::string& text) {
  if (text.empty()) return {};
  try {
    const auto document = nlohmann::json::parse(text);
    return {document.value("layer_classes", std::vector<std::string>{}),
            document.value("non_persistent", std::vector<std::string>{})};
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the model file's accel.json is wrong: {}", without_json_tag(error.what())));
  }
}

core::FsdpConfig with_notes(core::FsdpConfig config, const ModelNotes& notes) {
  if (!config.transformer_layer_cls_to_wrap.empty() || notes.layer_classes.empty()) return config;
  config.transformer_layer_cls_to_wrap = notes.layer_classes;
  config.wrap_origin = "the model file's accel.json, 'layer_classes'";
  return config;
}

}  // namespace accel::train
