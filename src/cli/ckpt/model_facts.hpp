#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace accel::cli {

/// An argument of a model's forward.
struct ModelInput {
  std::string name;
  std::string type;          ///< Such as "Tensor"; empty if it is not known.
  bool has_default = false;  ///< A caller may leave it out.
};

/// Modules of one class that are a model's layers.
struct ModelLayers {
  std::string class_name;
  std::size_t modules = 0;
};

/// What a model file is, beside its tensors.
struct ModelFacts {
  std::string class_name;  ///< The class of the model.
  std::vector<ModelInput> inputs;
  std::vector<std::string> outputs;  ///< The names of the results; empty if the file does not say them.
  std::string returns;               ///< The type of the result, such as "Tuple[Tensor, Tensor]".
  std::vector<ModelLayers> layers;   ///< Noted in the file, or guessed.
  std::vector<std::vector<std::string>> ties;  ///< The names of each parameter that has several.
  std::size_t parameters = 0;                  ///< A tied parameter counts once.
  std::int64_t elements = 0;                   ///< The elements of these parameters.
  bool has_weights = true;                     ///< The file has the values of all parameters.
  std::int64_t tp_heads = 0;                   ///< ModelNotes::tp_heads
  std::string compiled;  ///< CompiledLayers::summary(); empty if the file has no compiled code.
  /// Why accel cannot use the model; nothing else is set then, and the tensors can be shown nevertheless.
  std::optional<std::string> refusal;
};

/// Reads the structure and the code of a TorchScript file or of one of torch.export. Values of parameters are
/// not read, and nothing is executed. Throws Error if a signal has arrived.
[[nodiscard]] ModelFacts model_facts(const std::filesystem::path& path);

/// The facts for people, a line each.
[[nodiscard]] std::vector<std::string> lines_of(const ModelFacts& facts);
[[nodiscard]] nlohmann::ordered_json json_of(const ModelFacts& facts);

}  // namespace accel::cli
