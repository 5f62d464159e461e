#include "train/graph/analysis/sequence_mixing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "train/graph/analysis/author_line.hpp"

namespace accel::train {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;

std::string_view plain_name(const Node* node) {
  if (node->kind().ns() != c10::namespaces::aten) return "";
  std::string_view name = node->kind().toUnqualString();
  while (name.starts_with('_')) name.remove_prefix(1);
  return name;
}

bool is_one_of(const Node* node, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), plain_name(node)) != names.end();
}

/// Whether a product takes `value`, or what only changes its form or drops some of it.
bool is_multiplied(const Value* value) {
  return std::any_of(value->uses().begin(), value->uses().end(), [](const Use& use) {
    if (is_one_of(use.user, {"matmul", "bmm", "einsum", "baddbmm"})) return true;
    const bool passes_on =
        is_one_of(use.user, {"to", "to_copy", "type_as", "dropout", "native_dropout", "contiguous", "expand",
                             "view", "reshape", "nan_to_num", "detach", "clone"}) ||
        use.user->kind() == c10::prim::ListConstruct;
    return passes_on && use.user->outputs().size() == 1 && is_multiplied(use.user->output());
  });
}

bool mixes(const Node* node) {
  const std::string_view name = plain_name(node);
  if (name.empty()) return false;
  if (name == "softmax") return is_multiplied(node->output());
  // Beginnings of names.
  static const std::vector<std::string> kMixing = split(
      "scaled_dot_product native_multi_head transformer_encoder multi_head_attention conv1d conv2d "
      "conv3d conv_t convolution lstm gru rnn_ cumsum cumprod cummax cummin logcumsumexp diff flip "
      "roll fft_ stft max_pool avg_pool adaptive_ upsample_ interpolate arange constant_pad_nd",
      ' ');
  return std::any_of(kMixing.begin(), kMixing.end(),
                     [&](const std::string& mixing) { return name.starts_with(mixing); });
}

template <class Test>
const Node* first_in(const Block* block, const Test& test) {
  for (const Node* node : block->nodes()) {
    if (test(node)) return node;
    for (const Block* inner : node->blocks()) {
      if (const Node* found = first_in(inner, test)) return found;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<std::string> find_sequence_mixing(const torch::jit::Graph& graph) {
  const Node* found = first_in(graph.block(), mixes);
  if (found == nullptr) return std::nullopt;
  const auto line = author_line(found->sourceRange());
  return fmt::format("{}{}", found->kind().toQualString(), line ? fmt::format(" ({})", line->text) : "");
}

bool has_choices(const torch::jit::Graph& graph) {
  return first_in(graph.block(), [](const Node* node) {
           return is_one_of(node, {"topk", "sort", "argsort", "argmax", "grouped_mm"});
         }) != nullptr;
}

}  // namespace accel::train
