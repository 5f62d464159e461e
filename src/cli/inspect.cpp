#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "ckpt/inspection.hpp"
#include "cli/commands.hpp"

namespace accel::cli {
namespace {

using ckpt::InspectedFile;
using ckpt::InspectedTensor;
using ckpt::Inspection;
using Json = nlohmann::ordered_json;

std::string title_of(ckpt::Kind kind) {
  switch (kind) {
    case ckpt::Kind::kDcp:
      return "sharded checkpoint (DCP)";
    case ckpt::Kind::kSafetensors:
      return "safetensors file";
    case ckpt::Kind::kTorch:
      return "torch.save archive";
    case ckpt::Kind::kTorchScript:
      return "TorchScript model";
    case ckpt::Kind::kDirectory:
    case ckpt::Kind::kUnknown:
      break;
  }
  return std::string(name_of(kind));
}

// Columns padded to their widest cell; those in `right` are aligned to the right.
std::string format_table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right) {
  std::vector<std::size_t> widths(right.size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line +=
          right[c] ? fmt::format("  {:>{}}", row[c], widths[c]) : fmt::format("  {:<{}}", row[c], widths[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// "4 files": the names themselves would not fit a line.
std::string files_of(const InspectedTensor& tensor) {
  if (tensor.files.empty()) return "";
  return tensor.files.size() == 1 ? tensor.files.front() : fmt::format("{} files", tensor.files.size());
}

std::string totals_of(const Inspection& result) {
  std::int64_t elements = 0;
  std::map<std::string_view, std::size_t> dtypes;
  for (const InspectedTensor& tensor : result.tensors) {
    elements = checked_add(elements, checked_numel(tensor.shape));
    ++dtypes[ckpt::torch_name(tensor.dtype)];
  }
  std::vector<std::string> parts;
  parts.reserve(dtypes.size());
  for (const auto& [name, count] : dtypes) parts.push_back(fmt::format("{} {}", count, name));
  return fmt::format("{} tensors ({}), {} elements, {}", result.tensors.size(), fmt::join(parts, ", "),
                     elements, format_bytes(result.tensor_bytes()));
}

void print_text(const Inspection& result, std::ostream& out) {
  out << fmt::format("{}: {}\n", result.path.string(), title_of(result.kind));
  out << "  " << totals_of(result) << "\n";
  for (const auto& [key, value] : result.metadata) out << fmt::format("  {} = {}\n", key, value);
  if (!result.tensors.empty()) {
    std::vector<std::vector<std::string>> rows{{"TENSOR", "DTYPE", "SHAPE", "BYTES", "CHUNKS", "IN"}};
    for (const InspectedTensor& tensor : result.tensors) {
      rows.push_back({tensor.name, std::string(ckpt::torch_name(tensor.dtype)), ckpt::to_string(tensor.shape),
                      std::to_string(tensor.bytes), std::to_string(tensor.chunks), files_of(tensor)});
    }
    if (result.kind != ckpt::Kind::kDcp) {
      for (auto& row : rows) row.resize(4);
    }
    out << "\n" << format_table(rows, {false, false, false, true, true, false});
  }
  if (!result.objects.empty()) {
    std::vector<std::vector<std::string>> rows{{"OBJECT", "VALUE"}};
    for (const auto& object : result.objects) rows.push_back({object.name, object.value});
    out << "\n" << format_table(rows, {false, false});
  }
  if (!result.files.empty()) {
    std::vector<std::vector<std::string>> rows{
        {result.kind == ckpt::Kind::kDcp ? "FILE" : "RECORD", "BYTES"}};
    for (const InspectedFile& file : result.files) {
      rows.push_back({file.name, file.missing ? "missing" : std::to_string(file.bytes)});
    }
    out << "\n" << format_table(rows, {false, true});
  }
}

Json to_json(const Inspection& result) {
  Json document;
  document["path"] = result.path.string();
  document["kind"] = name_of(result.kind);
  document["tensor_bytes"] = result.tensor_bytes();
  document["metadata"] = result.metadata;
  document["tensors"] = Json::array();
  for (const InspectedTensor& tensor : result.tensors) {
    Json entry{{"name", tensor.name},
               {"dtype", ckpt::torch_name(tensor.dtype)},
               {"shape", tensor.shape},
               {"bytes", tensor.bytes}};
    if (result.kind == ckpt::Kind::kDcp) {
      entry["chunks"] = tensor.chunks;
      entry["files"] = tensor.files;
    }
    document["tensors"].push_back(std::move(entry));
  }
  document["objects"] = Json::array();
  for (const auto& object : result.objects) {
    document["objects"].push_back({{"name", object.name}, {"value", object.value}});
  }
  document["files"] = Json::array();
  for (const InspectedFile& file : result.files) {
    document["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"missing", file.missing}});
  }
  return document;
}

ExitCode run_inspect(const std::string& path, const Globals& globals) {
  const std::vector<Inspection> results = ckpt::inspect_all(path);
  if (globals.json) {
    Json document{{"path", path}, {"checkpoints", Json::array()}};
    for (const Inspection& result : results) document["checkpoints"].push_back(to_json(result));
    *globals.out << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    return ExitCode::kSuccess;
  }
  for (const Inspection& result : results) {
    if (&result != &results.front()) *globals.out << "\n";
    print_text(result, *globals.out);
  }
  return ExitCode::kSuccess;
}

}  // namespace

void add_inspect(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show what is in a checkpoint or model; runs no pickle code");
  auto path = std::make_shared<std::string>();
  command->add_option("PATH", *path, "A checkpoint, a model file, or a directory of checkpoints")->required();
  command->callback(
      [path, &globals, &action] { action = [path, &globals] { return run_inspect(*path, globals); }; });
}

}  // namespace accel::cli
