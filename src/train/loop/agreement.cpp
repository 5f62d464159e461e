#include "train/loop/agreement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "core/config/keys/common_settings.hpp"

namespace accel::train {
namespace {

std::string text_of(const ModelStructure& model) {
  std::string text;
  for (const ModuleInfo& module : model.modules)
    text += fmt::format("{}:{}\n", module.name, module.class_name);
  for (const ParameterInfo& parameter : model.parameters) {
    text += fmt::format("{}:{}:{}:{}:{}\n", fmt::join(parameter.fqns, ","), fmt::join(parameter.shape, "x"),
                        parameter.dtype, parameter.requires_grad, parameter.cross_unit);
  }
  return text;
}

/// FNV-1a, 64 bits: ranks of one job compare texts that differ by accident, not by intent.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

/// Whether all ranks have rank 0's `text`. Unlike all_gather_object(), in which every rank gets every other
/// rank's text, this costs a rank hardly more among a thousand ranks than among two.
bool is_the_same(Group& group, const std::string& text) {
  const auto own = std::as_bytes(std::span(text));
  const std::vector<std::byte> first = group.broadcast_bytes({own.begin(), own.end()});
  double others = std::equal(own.begin(), own.end(), first.begin(), first.end()) ? 0 : 1;
  group.all_reduce_sum({&others, 1});
  return others == 0;
}

}  // namespace

void require_agreement(Group& group, const config::Config& config, const ModelStructure& model,
                       const std::string& data) {
  const nlohmann::json mine = {{"configuration", config::common_settings(config)},
                               {"structure of the model file", hash_of(text_of(model))},
                               {"training data", data}};
  if (is_the_same(group, mine.dump())) return;
  const std::vector<std::string> all = group.all_gather_object(mine.dump());
  const auto first = nlohmann::json::parse(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto other = nlohmann::json::parse(all[rank]);
    for (const auto& [what, value] : first.items()) {
      if (other.at(what) == value) continue;
      using Settings = std::map<std::string, std::string>;
      const std::string how = what != "configuration"
                                  ? ""
                                  : ": " + config::differences(other.at(what).get<Settings>(),
                                                               value.get<Settings>(), "on rank 0");
      throw Error(ErrorKind::kUsage, fmt::format("rank {} and rank 0 disagree on the {}{}", rank, what, how))
          .hint("every machine must see the same files");
    }
  }
}

}  // namespace accel::train
