#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::ckpt {

/// The stem of the file and the name of the configuration in a directory that PeftModel.from_pretrained
/// loads.
inline constexpr std::string_view kAdapterStem = "adapter_model";
inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";

/// The name that PEFT gives in a file to the parameter `fqn` of a PeftModel, whose adapter has PEFT's default
/// name "default": `...lora_A.default.weight` is `...lora_A.weight`, and
/// `lm_head.modules_to_save.default.weight` is `lm_head.weight`.
[[nodiscard]] std::string adapter_file_name(std::string_view fqn);

/// The name of the adapter if `fqn` is a parameter of a PeftModel's adapter with another name than "default".
[[nodiscard]] std::optional<std::string> other_adapter_of(std::string_view fqn);

/// Whether `fqn` is a parameter of the module that a trained one replaces (`modules_to_save`). PEFT writes it
/// to no file.
[[nodiscard]] bool is_original_module(std::string_view fqn);

/// Whether the tensors are those of a LoRA adapter as PEFT saves it: some are of LoRA, and the weights of the
/// layers that LoRA wraps are not among them.
[[nodiscard]] bool are_adapter(const std::vector<std::string>& names);

}  // namespace accel::ckpt
