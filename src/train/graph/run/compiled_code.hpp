#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "structure/compiled_layers.hpp"

namespace accel::train {

/// The machine code of layers that compute the same, as AOTInductor has compiled it, loaded into this
/// process. It runs with the rights of the process: load what the user has asked to run, and nothing else.
///
/// The code assumes dtypes, sizes and memory orders of its inputs and checks none of them. Whoever calls it
/// does (compiled_body.hpp).
class CompiledCode {
 public:
  /// `forward` and `backward` are shared libraries. They are loaded from memory, so that no file is left
  /// behind. Throws Error (kFailure) if the system refuses them.
  CompiledCode(CompiledPackage description, std::span<const std::byte> forward,
               std::span<const std::byte> backward);
  CompiledCode(const CompiledCode&) = delete;
  CompiledCode& operator=(const CompiledCode&) = delete;
  ~CompiledCode();

  [[nodiscard]] const CompiledPackage& description() const { return description_; }
  /// Takes CompiledPackage::takes and returns the outputs, and after them the results for backward.
  [[nodiscard]] std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs) const;
  /// Takes CompiledPackage::backward_takes and returns a gradient for each of CompiledPackage::gradients.
  [[nodiscard]] std::vector<at::Tensor> backward(std::vector<at::Tensor> inputs) const;

 private:
  class Library;

  CompiledPackage description_;
  std::unique_ptr<Library> forward_;
  std::unique_ptr<Library> backward_;
};

/// Whether this processor has the instructions of a level of x86-64, "x86-64-v3". False for other names.
[[nodiscard]] bool has_instruction_set(const std::string& name);

/// The version of libtorch, such as "2.11.0".
[[nodiscard]] std::string torch_version();

}  // namespace accel::train
