#pragma once

#include <array>
#include <string_view>

#include "core/config/keys/keys.hpp"

namespace accel::config {

/// The backends of torch.compile that a training takes. EAGER and AOT_EAGER compile nothing.
/// YAML takes a bare NO for false.
inline constexpr std::string_view kCompileBackends = "NO|EAGER|AOT_EAGER|INDUCTOR|false";

inline constexpr Idle kCompilesNothing = {
    "only the backend INDUCTOR compiles code, and the others change no number",
    [](const Config& config) { return !config.training->compile.is_on(); }};

/// Accelerate's settings of torch.compile. A program gets all of them.
inline constexpr auto kCompileKeys = std::to_array<Key>({
    {.path = "dynamo_backend",
     .type = Type::kScalar,
     .help = "Older form of dynamo_config.backend",
     .built = kCompileBackends,
     .system = "another backend of Python's torch.compile",
     .idle = kCompilesNothing},
    {.path = "dynamo_config.backend",
     .type = Type::kScalar,
     .help = "INDUCTOR: layers run the code that accel-export --compile has put into the model file, in "
             "training on the CPU. NO, EAGER and AOT_EAGER compile nothing",
     .member = member<&Config::training, &TrainingConfig::compile, &CompileConfig::backend>,
     .built = kCompileBackends,
     .system = "another backend of Python's torch.compile",
     .idle = kCompilesNothing,
     .standard = "NO",
     .variable = "ACCELERATE_DYNAMO_BACKEND",
     .traits = kComputed},
    {.path = "dynamo_config.use_fullgraph",
     .help =
         "It is an error if the model file has no compiled code that fits this run. Without it such a run "
         "warns, and runs the operators of the model",
     .member = member<&Config::training, &TrainingConfig::compile, &CompileConfig::fullgraph>,
     .idle = kCompilesNothing,
     .variable = "ACCELERATE_DYNAMO_USE_FULLGRAPH",
     .passed = "False",
     .traits = kNoNumbers},
    {.path = "dynamo_config.mode",
     .type = Type::kScalar,
     .help = "How hard torch.compile looks for fast code",
     .no_effect = "the code of a model is compiled when the model is exported",
     .variable = "ACCELERATE_DYNAMO_MODE",
     .passed = "default",
     .traits = kOnlyPassed},
    {.path = "dynamo_config.use_dynamic",
     .type = Type::kBool,
     .help = "Whether torch.compile makes code for all sizes",
     .no_effect = "compiled code holds for all sizes for which the model was exported",
     .variable = "ACCELERATE_DYNAMO_USE_DYNAMIC",
     .passed = "False",
     .traits = kOnlyPassed},
    {.path = "dynamo_config.use_regional_compilation",
     .type = Type::kBool,
     .help = "Whether torch.compile compiles repeated layers once",
     .no_effect = "layers that compute the same share their code in any case",
     .variable = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
     .passed = "False",
     .traits = kOnlyPassed},
});

}  // namespace accel::config
