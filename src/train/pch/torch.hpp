// Precompiled for the worker's sources: libtorch's headers take four times as long to parse as our own code
// to compile. No source relies on it; each includes what it uses.
#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
