#include "cli/ckpt/inspect_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"

namespace accel::cli {
namespace {

using ckpt::InspectedFile;
using ckpt::InspectedObject;
using ckpt::InspectedTensor;
using ckpt::Inspection;
using ckpt::Part;
using Json = nlohmann::ordered_json;
using TableRows = std::vector<std::vector<std::string>>;

/// The objects that a summary shows.
constexpr std::size_t kObjects = 10;

const std::vector<std::string> kNumbers = {"BYTES", "CHUNKS", "COPIES", "TENSORS", "PARAMETERS", "EACH"};

std::string title_of(ckpt::Kind kind) {
  switch (kind) {
    case ckpt::Kind::kDcp:
      return "sharded checkpoint (DCP)";
    case ckpt::Kind::kDcpSafetensors:
      return "sharded checkpoint (DCP in safetensors)";
    case ckpt::Kind::kSafetensors:
      return "safetensors file";
    case ckpt::Kind::kSafetensorsSharded:
      return "model in several safetensors files";
    case ckpt::Kind::kTorch:
      return "torch.save archive";
    case ckpt::Kind::kTorchSharded:
      return "model in several torch.save archives";
    case ckpt::Kind::kTorchScript:
      return "TorchScript model";
    case ckpt::Kind::kPt2:
      return "model of torch.export";
    case ckpt::Kind::kLocal:
      return "local checkpoint, one file of flat shards per rank";
    case ckpt::Kind::kDtensor:
      return "checkpoint with one file of DTensors per rank";
    case ckpt::Kind::kDirectory:
    case ckpt::Kind::kUnknown:
      break;
  }
  return std::string(name_of(kind));
}

// The name of the only file, or "4 files": several names would not fit on a line.
std::string files_of(const InspectedTensor& tensor) {
  if (tensor.files.empty()) return "";
  return tensor.files.size() == 1 ? tensor.files.front() : fmt::format("{} files", tensor.files.size());
}

/// "29 tensors (29 float32), 84288 elements, 337 kB"; empty if the checkpoint has no tensors of that part.
std::string totals_of(const Inspection& result, Part part) {
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  std::map<std::string_view, std::size_t> dtypes;
  for (const InspectedTensor& tensor : result.tensors) {
    if (tensor.part != part) continue;
    ++tensors;
    elements = checked_add(elements, checked_numel(tensor.shape));
    bytes = checked_add(bytes, tensor.bytes);
    ++dtypes[ckpt::torch_name(tensor.dtype)];
  }
  if (tensors == 0) return "";
  std::vector<std::string> counts;
  counts.reserve(dtypes.size());
  for (const auto& [name, count] : dtypes) counts.push_back(fmt::format("{} {}", count, name));
  return fmt::format("{} tensors ({}), {} elements, {}", tensors, fmt::join(counts, ", "), elements,
                     format_bytes(bytes));
}

void print_totals(const Inspection& result, const InspectOptions& options, Results& out) {
  const std::string weights = totals_of(result, Part::kWeights);
  const std::string optimizer = totals_of(result, Part::kOptimizer);
  const std::string other = totals_of(result, Part::kOther);
  if (!weights.empty() || (optimizer.empty() && other.empty()))
    out.line("  " + (weights.empty() ? "no tensors" : weights));
  if (!optimizer.empty())
    out.line(
        fmt::format("  optimizer: {}{}", optimizer, options.optimizer ? "" : "; --optimizer lists them"));
  if (!other.empty())
    out.line(fmt::format("  other state: {}{}", other, options.tensors ? "" : "; --tensors lists them"));
}

// Prints which part of the checkpoint is the weights, if the checkpoint has other parts.
void print_layout(const Inspection& result, Results& out) {
  if (result.roots.size() > 1) {
    out.line(fmt::format("  several sets of weights: '{}'", fmt::join(result.roots, "', '")));
  } else if (!result.beside.empty()) {
    out.line(fmt::format("  weights{}; beside them {}",
                         result.roots.empty() ? "" : fmt::format(" under '{}'", result.roots.front()),
                         to_string(result.beside)));
  }
}

void print_layers(const std::vector<ckpt::LayerRow>& layers, Results& out) {
  if (layers.empty()) return;
  const bool has_equal =
      std::any_of(layers.begin(), layers.end(), [](const ckpt::LayerRow& row) { return row.layers > 1; });
  TableRows rows{{"LAYER", "TENSORS", "PARAMETERS", "EACH", "BYTES", "DTYPE"}};
  for (const ckpt::LayerRow& row : layers) {
    std::vector<std::string_view> dtypes;
    for (const auto& [dtype, tensors] : row.dtypes) dtypes.push_back(ckpt::torch_name(dtype));
    const std::int64_t each = row.elements / static_cast<std::int64_t>(row.layers);
    rows.push_back({row.name, std::to_string(row.tensors), std::to_string(row.elements),
                    row.layers > 1 ? std::to_string(each) : "", format_bytes(row.bytes),
                    fmt::format("{}", fmt::join(dtypes, ", "))});
  }
  if (!has_equal) {
    for (auto& row : rows) row.erase(row.begin() + 3);
  }
  out.line();
  out.table(std::move(rows), kNumbers);
}

// Leaves out the columns that say nothing about this checkpoint.
TableRows columns_for(const Inspection& result, TableRows rows) {
  constexpr std::ptrdiff_t kCopies = 5;
  const bool copies = std::any_of(result.tensors.begin(), result.tensors.end(),
                                  [](const InspectedTensor& tensor) { return tensor.copies > 0; });
  for (auto& row : rows) {
    if (has_one_file(result.kind)) {
      row.resize(4);
    } else if (!copies) {
      row.erase(row.begin() + kCopies);
    }
  }
  return rows;
}

void print_tensors(const Inspection& result, const InspectOptions& options, Results& out) {
  TableRows rows{{"TENSOR", "DTYPE", "SHAPE", "BYTES", "CHUNKS", "COPIES", "IN"}};
  for (const InspectedTensor& tensor : result.tensors) {
    if (tensor.part == Part::kOptimizer ? !options.optimizer : !options.tensors) continue;
    rows.push_back({tensor.name, std::string(ckpt::torch_name(tensor.dtype)), ckpt::to_string(tensor.shape),
                    tensor.dtype == ckpt::DType::kUnknown ? "unknown" : std::to_string(tensor.bytes),
                    std::to_string(tensor.chunks), std::to_string(tensor.copies), files_of(tensor)});
  }
  if (rows.size() == 1) return;
  out.line();
  out.table(columns_for(result, std::move(rows)), kNumbers);
}

void print_objects(const Inspection& result, const InspectOptions& options, Results& out) {
  TableRows rows{{"OBJECT", "VALUE"}};
  std::size_t left = 0;
  for (const InspectedObject& object : result.objects) {
    if (object.part == Part::kOptimizer && !options.optimizer) continue;
    if (!options.tensors && !options.optimizer && rows.size() > kObjects) {
      ++left;
    } else {
      rows.push_back({object.name, object.value});
    }
  }
  if (rows.size() == 1) return;
  out.line();
  out.table(std::move(rows), kNumbers);
  if (left > 0) out.line(fmt::format("  ... and {} more objects; --tensors lists them", left));
}

void print_files(const Inspection& result, Results& out) {
  TableRows rows{{has_one_file(result.kind) ? "RECORD" : "FILE", "BYTES"}};
  for (const InspectedFile& file : result.files)
    rows.push_back({file.name, file.missing ? "missing" : std::to_string(file.bytes)});
  if (rows.size() == 1) return;
  out.line();
  out.table(std::move(rows), kNumbers);
}

// In one line; files that are missing have a line each.
void sum_up_files(const Inspection& result, Results& out) {
  if (has_one_file(result.kind)) return;
  std::uint64_t bytes = 0;
  for (const InspectedFile& file : result.files) bytes += file.bytes;
  out.line(fmt::format("  {} {} of data, {}", result.files.size(),
                       result.files.size() == 1 ? "file" : "files", format_bytes(bytes)));
  for (const InspectedFile& file : result.files) {
    if (file.missing) out.line(fmt::format("  '{}' is missing", file.name));
  }
}

std::string_view text_of(Part part) {
  switch (part) {
    case Part::kWeights:
      return "weights";
    case Part::kOptimizer:
      return "optimizer";
    case Part::kOther:
      break;
  }
  return "other";
}

Json layers_json(const std::vector<ckpt::LayerRow>& layers) {
  Json list = Json::array();
  for (const ckpt::LayerRow& row : layers) {
    check_interrupted();
    Json dtypes = Json::object();
    for (const auto& [dtype, tensors] : row.dtypes) dtypes[std::string(ckpt::torch_name(dtype))] = tensors;
    list.push_back({{"name", row.name},
                    {"layers", row.layers},
                    {"tensors", row.tensors},
                    {"elements", row.elements},
                    {"bytes", row.bytes},
                    {"dtypes", std::move(dtypes)}});
  }
  return list;
}

}  // namespace

bool has_weights(const Inspection& result) {
  return std::any_of(result.tensors.begin(), result.tensors.end(),
                     [](const InspectedTensor& tensor) { return tensor.part == Part::kWeights; });
}

void print_inspection(const Inspection& result, const std::optional<ModelFacts>& model,
                      const InspectOptions& options, Results& out) {
  out.line(fmt::format("{}: {}", result.path.string(), title_of(result.kind)));
  print_totals(result, options, out);
  if (model) out.lines(lines_of(*model));
  print_layout(result, out);
  if (!options.tensors) sum_up_files(result, out);
  for (const auto& [key, value] : result.metadata) out.line(fmt::format("  {} = {}", key, value));
  if (!options.tensors) print_layers(result.layers(), out);
  print_tensors(result, options, out);
  print_objects(result, options, out);
  if (options.tensors) print_files(result, out);
}

Json json_of(const Inspection& result, const std::optional<ModelFacts>& model) {
  Json document;
  document["path"] = result.path.string();
  document["kind"] = name_of(result.kind);
  document["tensor_bytes"] = result.tensor_bytes();
  document["metadata"] = result.metadata;
  document["roots"] = result.roots;
  document["beside"] = Json::array();
  for (const ckpt::LayoutPart& part : result.beside) {
    document["beside"].push_back({{"name", part.name}, {"tensors", part.tensors}, {"objects", part.objects}});
  }
  if (model) document["model"] = json_of(*model);
  document["layers"] = layers_json(result.layers());
  document["tensors"] = Json::array();
  for (const InspectedTensor& tensor : result.tensors) {
    check_interrupted();
    Json entry{{"name", tensor.name},
               {"dtype", ckpt::torch_name(tensor.dtype)},
               {"shape", tensor.shape},
               {"bytes", tensor.bytes},
               {"part", text_of(tensor.part)}};
    if (tensor.dtype == ckpt::DType::kUnknown) entry["bytes"] = nullptr;
    if (!has_one_file(result.kind)) {
      entry["chunks"] = tensor.chunks;
      entry["copies"] = tensor.copies;
      entry["files"] = tensor.files;
    }
    document["tensors"].push_back(std::move(entry));
  }
  document["objects"] = Json::array();
  for (const InspectedObject& object : result.objects) {
    document["objects"].push_back(
        {{"name", object.name}, {"value", object.value}, {"part", text_of(object.part)}});
  }
  document["files"] = Json::array();
  for (const InspectedFile& file : result.files) {
    document["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"missing", file.missing}});
  }
  return document;
}

}  // namespace accel::cli
