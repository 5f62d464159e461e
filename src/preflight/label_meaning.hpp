#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {

/// A label that cross_entropy leaves out.
inline constexpr std::int64_t kIgnored = -100;

/// Integers of training data, each as int64.
[[nodiscard]] std::vector<std::int64_t> integers_of(std::span<const std::byte> bytes, ckpt::DType dtype);

/// Throws Error (kUsage) if labels that the files hold are not what the loss needs: the tokens of an input
/// themselves for a cross entropy, which teaches a model to copy, or the next tokens for a model that shifts
/// its labels itself (Labels::kInputs). `format` is that of the source. Looks at the first samples.
void require_meaning_of_labels(const SampleSource& source, const std::string& format,
                               const config::ModelConfig& model, Labels labels);

}  // namespace accel
