// What it takes to plan a checkpoint of a model like Llama 2 70B on many ranks, without its values:
//
//   save-plan-bench RANKS
//
// Every rank plans its own file by itself. Rank 0 also plans those of all others, for .metadata. Prints JSON:
// the milliseconds and the memory of a rank's own plan, the largest of ranks 0, RANKS / 2 and RANKS - 1, and
// those of rank 0's plans of all and of the text of .metadata, of the model and of the optimizer's two
// moments.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/dcp/metadata_write.hpp"
#include "ckpt/dcp/rank_plan.hpp"
#include "plan/layout/flat_layout.hpp"

namespace {

using namespace accel;
using Clock = std::chrono::steady_clock;

std::uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  }
  return 0;
}

/// One flat buffer for each decoder layer, and one for the rest.
std::vector<FlatLayout> layouts_of_llama(int ranks) {
  constexpr std::int64_t kWidth = 8192;
  constexpr std::int64_t kInner = 28672;
  constexpr std::int64_t kKeys = 1024;
  constexpr std::int64_t kVocabulary = 32000;
  const Mesh mesh{1, ranks};
  std::vector<FlatLayout> layouts;
  for (int layer = 0; layer < 80; ++layer) {
    const auto name = [&](const char* part) { return fmt::format("model.layers.{}.{}.weight", layer, part); };
    layouts.push_back(make_flat_layout({{{name("self_attn.q_proj")}, {kWidth, kWidth}},
                                        {{name("self_attn.k_proj")}, {kKeys, kWidth}},
                                        {{name("self_attn.v_proj")}, {kKeys, kWidth}},
                                        {{name("self_attn.o_proj")}, {kWidth, kWidth}},
                                        {{name("mlp.gate_proj")}, {kInner, kWidth}},
                                        {{name("mlp.up_proj")}, {kInner, kWidth}},
                                        {{name("mlp.down_proj")}, {kWidth, kInner}},
                                        {{name("input_layernorm")}, {kWidth}},
                                        {{name("post_attention_layernorm")}, {kWidth}}},
                                       4, mesh));
  }
  layouts.push_back(make_flat_layout({{{"model.embed_tokens.weight"}, {kVocabulary, kWidth}},
                                      {{"lm_head.weight"}, {kVocabulary, kWidth}},
                                      {{"model.norm.weight"}, {kWidth}}},
                                     4, mesh));
  return layouts;
}

/// The chunks that `rank` writes, as train/checkpoint/state_items makes them: of the model, or of both
/// moments.
std::vector<ckpt::DcpItem> items_of(const std::vector<FlatLayout>& layouts, int rank, bool optimizer) {
  std::vector<ckpt::DcpItem> items;
  for (const FlatLayout& layout : layouts) {
    for (const ShardPiece& piece : portion_pieces(layout, layout.mesh.place_of(rank))) {
      const ParameterSpec& spec = layout.parameters[piece.parameter].spec;
      for (const char* moment : {"exp_avg", "exp_avg_sq"}) {
        for (ckpt::Box& box :
             ckpt::boxes_of_range(spec.shape, piece.in_parameter.begin, piece.in_parameter.end)) {
          ckpt::StatePath path = {"model", spec.fqns.front()};
          if (optimizer) path = {"optimizer", "state", spec.fqns.front(), moment};
          items.push_back(
              {std::move(path), ckpt::TensorChunk{ckpt::DType::kFloat32, spec.shape, std::move(box)}});
        }
        if (!optimizer) break;
      }
    }
  }
  return items;
}

template <class Work>
nlohmann::json measured(Work&& work) {
  const std::uint64_t before = resident_bytes();
  const Clock::time_point begin = Clock::now();
  const auto result = work();
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return {{"ms", ms},
          {"megabytes", static_cast<double>(resident_bytes() - before) / 1e6},
          {"size", result.size()}};
}

nlohmann::json measure(int ranks) {
  const std::vector<FlatLayout> layouts = layouts_of_llama(ranks);
  nlohmann::json result = {{"ranks", ranks}};
  for (const bool optimizer : {false, true}) {
    nlohmann::json own = {{"ms", 0.0}};
    for (const int rank : {0, ranks / 2, ranks - 1}) {
      const nlohmann::json one =
          measured([&] { return ckpt::plan_dcp_rank(rank, items_of(layouts, rank, optimizer)).items; });
      if (one.at("ms") > own.at("ms")) own = one;
    }
    std::vector<ckpt::DcpRankPlan> plans;
    const nlohmann::json all = measured([&]() -> const std::vector<ckpt::DcpRankPlan>& {
      for (int rank = 0; rank < ranks; ++rank)
        plans.push_back(ckpt::plan_dcp_rank(rank, items_of(layouts, rank, optimizer)));
      return plans;
    });
    const nlohmann::json metadata = measured([&] { return ckpt::encode_dcp_metadata(plans); });
    result[optimizer ? "optimizer" : "model"] = {
        {"own plan", own}, {"all plans", all}, {".metadata", metadata}};
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    fmt::print("{}\n", measure(std::max(1, std::atoi(argv[1]))).dump(1));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
