#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ckpt/tensor/box.hpp"
#include "ckpt/tensor/dtype.hpp"

namespace accel::ckpt {

/// A tensor of a model, by its name in the model's state dict.
struct LayerTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  std::uint64_t bytes = 0;
};

/// A layer, a module or a lone tensor of a model, or several layers that are equal.
struct LayerRow {
  std::string name;           ///< Such as "lm_head", "layers.3" or, for equal layers, "layers.0-2,4".
  std::size_t layers = 1;     ///< How many equal layers the row stands for.
  std::size_t tensors = 0;    ///< The tensors of all of them.
  std::int64_t elements = 0;  ///< The elements of these tensors.
  std::uint64_t bytes = 0;    ///< The bytes of these tensors.
  std::map<DType, std::size_t> dtypes;  ///< How many of these tensors have each dtype.
};

/// Sums up the tensors of a model by layer, in the order of their names.
///
/// A layer is a numbered child of a module, such as "layers.3" in "model.layers.3.mlp.up.weight"; of several
/// numbers in a name the first counts. A module that has layers somewhere inside is not a row itself. Every
/// other tensor belongs to its outermost module that has no layers inside. Layers of one list are equal if
/// their tensors have the same names, dtypes and shapes; they are one row. Throws Error if the elements of a
/// row are more than an integer holds.
[[nodiscard]] std::vector<LayerRow> summarize_layers(std::vector<LayerTensor> tensors);

}  // namespace accel::ckpt
