#include "structure/model_notes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/files/json_text.hpp"
#include "base/text.hpp"

namespace accel {
namespace {

/// Without this check a file that PEFT cannot read would lie beside weights that took a training.
std::string adapter_text(const nlohmann::json& config) {
  if (config.is_object() && config.contains("peft_type")) return config.dump(2) + "\n";
  throw Error(ErrorKind::kUsage,
              "the model file's accel.json has an adapter_config that is not an object with a peft_type")
      .hint("export the model again with accel-export, which takes it from PEFT");
}

/// Reads the plan of tensor parallelism, an object of texts, and the number that a number of ranks divides.
void read_tensor_plan(const nlohmann::json& document, ModelNotes& notes) {
  const auto plan = document.find("tp_plan");
  if (plan == document.end()) return;
  const auto heads = document.find("tp_heads");
  const bool has_heads = heads != document.end() && heads->is_number_integer() && *heads > 0;
  if (!plan->is_object() || plan->empty() || !has_heads) {
    throw Error(
        ErrorKind::kUsage,
        "the model file's accel.json has a tp_plan that is not an object of styles, or has no positive "
        "tp_heads beside it")
        .hint("export the model again with accel-export, which takes the plan from transformers");
  }
  for (const auto& [pattern, style] : plan->items())
    notes.tp_plan.emplace_back(pattern, style.get<std::string>());
  notes.tp_heads = heads->get<std::int64_t>();
}

}  // namespace

ModelNotes parse_notes(const std::string& text) {
  if (text.empty()) return {};
  try {
    const auto document = parse_json(text);
    const auto conversions = document.find("weight_conversions");
    const auto adapter = document.find("adapter_config");
    ModelNotes notes{document.value("layer_classes", std::vector<std::string>{}),
                     document.value("non_persistent", std::vector<std::string>{}),
                     document.value("inputs", std::vector<std::string>{}),
                     document.value("outputs", std::vector<std::string>{}),
                     document.value("source", std::string()) == "torch.export",
                     document.value("shifts_labels", false),
                     document.value("dtype", std::string()),
                     conversions == document.end() ? std::string() : conversions->dump(),
                     adapter == document.end() ? std::string() : adapter_text(*adapter),
                     document.contains("layer_classes")};
    if (const auto apart = document.find("keeps_documents_apart"); apart != document.end())
      notes.keeps_documents_apart = apart->get<bool>();
    if (const auto most = document.value("max_positions", std::int64_t{0}); most > 0)
      notes.max_positions = most;
    read_tensor_plan(document, notes);
    constexpr std::array<std::string_view, 4> kDtypes = {"", "bfloat16", "float16", "float32"};
    if (std::find(kDtypes.begin(), kDtypes.end(), notes.dtype) != kDtypes.end()) return notes;
    throw Error(ErrorKind::kUsage,
                fmt::format("the model file's accel.json has the dtype '{}'; expected bfloat16, float16 or "
                            "float32",
                            notes.dtype));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the model file's accel.json is malformed: {}", without_json_tag(error.what())));
  }
}

bool is_known_input(std::string_view name) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"input_ids", "labels", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds",
       "decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds", "encoder_outputs",
       "past_key_values", "cache_position", "pixel_values", "pixel_mask", "input_values", "input_features"});
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace accel
