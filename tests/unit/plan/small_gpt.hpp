#pragma once

#include "structure/structure.hpp"

namespace accel::fixtures {

/// A model with a tied parameter, a container, and a unit within another.
inline ModelStructure gpt() {
  ModelStructure model;
  model.modules = {{"", "GPT"},
                   {"tokens", "Embedding"},
                   {"blocks", "ModuleList"},
                   {"blocks.0", "Block"},
                   {"blocks.0.up", "Linear"},
                   {"blocks.1", "Block"},
                   {"blocks.1.inner", "Block"},
                   {"blocks.10", "Block"},
                   {"head", "Linear"}};
  model.parameters = {{{"tokens.weight", "head.weight"}, {8, 4}, "float32"},
                      {{"blocks.0.up.weight"}, {4, 4}, "float32"},
                      {{"blocks.1.scale"}, {4}, "float32"},
                      {{"blocks.1.inner.weight"}, {4}, "float32"},
                      {{"blocks.10.weight"}, {4}, "float32"}};
  return model;
}

}  // namespace accel::fixtures
