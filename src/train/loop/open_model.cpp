#include "train/loop/open_model.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ckpt/tensor/dtype.hpp"
#include "import/imported_structure.hpp"
#include "preflight/model_inputs.hpp"
#include "train/model/compile_error.hpp"

namespace accel::train {
namespace {

/// Throws if this rank does not see the file `path`. Rank 0 needs the file in any case and is not checked
/// here: opening the file gives a more detailed error.
void require_file(const std::filesystem::path& path, int rank) {
  std::error_code error;
  if (rank == 0 || path.empty() || std::filesystem::exists(path, error)) return;
  throw Error(ErrorKind::kUsage, fmt::format("rank {} does not see '{}'", rank, path.string()))
      .hint(
          "every machine must see the model and its weights; if rank 0 alone does, set "
          "training.model.broadcast_from_rank0: true");
}

OpenedModel open(const config::ModelConfig& config, int rank) {
  if (!is_pt2(config.path)) return {ModelFile::open(config.path), config.weights};
  ImportedStructure imported = import_structure(config.path);
  if (rank == 0) {
    for (const std::string& place : imported.random_operators)
      log::warn(fmt::format("{}: draws random numbers in evaluation, too", place));
  }
  const bool has_own = imported.has_values && config.weights.empty() && !config.init_std;
  try {
    return {ModelFile::from_outline(ModelOutline::of_bytes(std::move(imported.file))),
            has_own ? config.path : config.weights, input_dtypes(config, imported.signature)};
  } catch (const torch::jit::ErrorReport& error) {
    throw compile_error(config.path, error);
  }
}

/// Returns rank 0's `text` on every rank. Collective.
std::string broadcast_text(Group& group, const std::string& text) {
  const auto own = std::as_bytes(std::span(text));
  const std::vector<std::byte> bytes = group.broadcast_bytes({own.begin(), own.end()});
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string text_of(const InputDtypes& dtypes) {
  auto document = nlohmann::json::object();
  for (const auto& [field, dtype] : dtypes) document[field] = ckpt::torch_name(dtype);
  return document.dump();
}

InputDtypes dtypes_from_text(const std::string& text) {
  InputDtypes dtypes;
  const auto document = nlohmann::json::parse(text);
  for (const auto& [field, name] : document.items())
    dtypes.emplace(field, ckpt::dtype_of_torch_name(name.get<std::string>()).value());
  return dtypes;
}

}  // namespace

OpenedModel open_model(const config::ModelConfig& config, Group& group) {
  if (!config.broadcast_from_rank0 || group.size() == 1) {
    require_file(config.path, group.rank());
    require_file(config.weights, group.rank());
    return open(config, group.rank());
  }
  if (group.rank() != 0) {
    ModelFile file = ModelFile::from_outline(ModelOutline::from_bytes(group.broadcast_bytes({})));
    std::string weights = broadcast_text(group, {});
    return {std::move(file), std::move(weights), dtypes_from_text(broadcast_text(group, {}))};
  }
  OpenedModel model = open(config, 0);
  group.broadcast_bytes(model.file.outline().to_bytes());
  broadcast_text(group, model.weights.string());
  broadcast_text(group, text_of(model.input_dtypes));
  return model;
}

}  // namespace accel::train
