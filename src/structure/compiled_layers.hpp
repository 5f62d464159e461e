#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.hpp"

namespace accel {

/// The extra file of a model file that describes its compiled code (docs/formats.md).
inline constexpr std::string_view kCompiledNotes = "compiled.json";
/// The folder of the machine code in a .pt2 file and in the TorchScript file that is made of it.
inline constexpr std::string_view kCompiledFolder = "compiled/";

/// The sizes of a tensor: each a number, or the name of a size that varies. Sizes of one name are equal. A
/// text that is not a name is computed from other sizes.
using CompiledShape = std::vector<std::variant<std::int64_t, std::string>>;

/// A tensor that the code of a layer takes: a parameter or a buffer of the layer, or an input of its forward.
struct CompiledTensor {
  std::string own;        ///< The name below the layer; empty for an input.
  std::size_t input = 0;  ///< The place among the layer's inputs that are tensors.
  std::string dtype;      ///< torch's name, such as "float32".
  CompiledShape shape;
  bool gradient = false;  ///< Backward gives its gradient.
};

/// A tensor that backward takes.
struct BackwardInput {
  enum class Kind { kTaken, kResult, kGradient };
  Kind kind = Kind::kTaken;
  /// The place in CompiledPackage::takes, among the results of forward, or in output_gradients.
  std::size_t index = 0;
};

/// The gradient of an output as backward takes it. The output has the same dtype and shape.
struct OutputGradient {
  std::size_t output = 0;
  std::string dtype;
  CompiledShape shape;
  std::vector<std::size_t> order;  ///< The dimensions from the widest stride to the narrowest.
};

/// The machine code of layers that compute the same: a forward and a backward, each in a shared library.
struct CompiledPackage {
  std::string class_name;
  std::vector<CompiledTensor> takes;  ///< What forward takes, in order.
  std::size_t outputs = 0;            ///< The first results of forward. The others are for backward.
  std::vector<BackwardInput> backward_takes;
  std::vector<OutputGradient> output_gradients;  ///< The other outputs have no gradient.
  std::vector<std::size_t> gradients;  ///< The places in `takes` of which backward gives the gradients.
  std::uint64_t forward_bytes = 0;
  std::uint64_t backward_bytes = 0;
};

/// A layer that has code.
struct CompiledLayer {
  std::size_t package = 0;
  std::vector<std::string> inputs;  ///< The names of the inputs that are tensors.
};

/// What `accel-export --compile` wrote about the code of a model's layers. The code itself is not read.
struct CompiledLayers {
  std::string torch;            ///< The version of torch that compiled, such as "2.11.0".
  std::string device;           ///< "cpu".
  std::string instruction_set;  ///< A level of x86-64, such as "x86-64-v3".
  std::string dtype;            ///< The dtype of the layers' parameters in training.
  std::string autocast;         ///< The dtype of the autocast that is in the code; empty without it.
  std::vector<CompiledPackage> packages;
  std::map<std::string, CompiledLayer> layers;  ///< The layers by their paths.

  /// Says what the code is of, for example "2 layers of LlamaDecoderLayer (0.9 MB, torch 2.11.0, x86-64-v3,
  /// float32)".
  [[nodiscard]] std::string summary() const;
};

/// Says in which dtype the parameters are in training, and whether layers compute under autocast; `autocast`
/// is empty without it. For example "float32 under autocast to bfloat16".
[[nodiscard]] std::string text_of_precision(const std::string& dtype, const std::string& autocast);

/// The Error (kUsage) of compiled code that is not there or does not fit, with the way to code that does.
[[nodiscard]] Error unfit_code(const std::string& what, std::string_view flags = "");

/// The code for a run on CPUs with parameters of `dtype`, whose layers compute under `autocast`; an empty
/// dtype is float32. `text` is the extra file. Throws as parse_compiled_layers() does, and unfit_code() for a
/// file that is empty and for code of another precision or device.
[[nodiscard]] CompiledLayers compiled_layers_for(const std::string& text, const std::string& dtype,
                                                 const std::string& autocast);

/// Throws unfit_code() if the code is for another `what` than the run has.
void require_code_for(std::string_view what, const std::string& code, const std::string& run,
                      std::string_view flags = "");

/// The name of the record with a package's forward or backward, such as "compiled/0_forward.so".
[[nodiscard]] std::string record_of_code(std::size_t package, bool is_backward);

/// Parses the content of the extra file. Throws Error: kCorrupt if it is malformed or contradicts itself,
/// kUsage for a version that accel does not know.
[[nodiscard]] CompiledLayers parse_compiled_layers(const std::string& text);

}  // namespace accel
