#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/tensor/dtype.hpp"

namespace accel {

/// A size of an input or output for which a program was exported, with both ends included.
struct ProgramSize {
  std::int64_t least = 0;
  std::optional<std::int64_t> most;  ///< Absent without a bound.

  /// The size if there is only one.
  [[nodiscard]] std::optional<std::int64_t> fixed() const { return most == least ? most : std::nullopt; }
};

/// A tensor that goes into an exported program or comes out of it.
struct ProgramValue {
  std::string name;                  ///< The name, or the number of an output that has no name.
  std::optional<ckpt::DType> dtype;  ///< Absent for a dtype that checkpoints do not have.
  std::vector<ProgramSize> shape;    ///< Empty for a scalar, and if the program does not say it.
  /// Whether an input goes, as it is, into an operator whose tensors must have one dtype.
  bool is_strict = false;
};

/// The inputs that an exported program takes and the outputs that it gives, in order.
struct ProgramSignature {
  std::vector<ProgramValue> inputs;
  std::vector<ProgramValue> outputs;
};

struct ExportedGraph;

/// Reads the signature of `program`, whose graph is `graph`. A size that the program computes from others in
/// another way than LinearSize has no bounds.
[[nodiscard]] ProgramSignature signature_of(const nlohmann::json& program, const ExportedGraph& graph);

}  // namespace accel
