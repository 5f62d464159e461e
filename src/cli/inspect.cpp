#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "ckpt/read/inspection.hpp"
#include "ckpt/store/manifest.hpp"
#include "ckpt/store/resume_point.hpp"
#include "ckpt/store/run_state.hpp"
#include "cli/commands.hpp"
#include "cli/output/results.hpp"
#include "cli/output/table.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using ckpt::InspectedFile;
using ckpt::InspectedTensor;
using ckpt::Inspection;
using Json = nlohmann::ordered_json;

const std::vector<std::string> kNumbers = {"BYTES", "CHUNKS", "COPIES"};

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

// Leaves out the columns that say nothing about this checkpoint.
std::vector<std::vector<std::string>> columns_for(const Inspection& result,
                                                  std::vector<std::vector<std::string>> rows) {
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

void print_text(const Inspection& result, Results& out) {
  out.line(fmt::format("{}: {}", result.path.string(), title_of(result.kind)));
  out.line("  " + totals_of(result));
  print_layout(result, out);
  for (const auto& [key, value] : result.metadata) out.line(fmt::format("  {} = {}", key, value));
  if (!result.tensors.empty()) {
    std::vector<std::vector<std::string>> rows{
        {"TENSOR", "DTYPE", "SHAPE", "BYTES", "CHUNKS", "COPIES", "IN"}};
    for (const InspectedTensor& tensor : result.tensors) {
      rows.push_back({tensor.name, std::string(ckpt::torch_name(tensor.dtype)), ckpt::to_string(tensor.shape),
                      tensor.dtype == ckpt::DType::kUnknown ? "unknown" : std::to_string(tensor.bytes),
                      std::to_string(tensor.chunks), std::to_string(tensor.copies), files_of(tensor)});
    }
    out.line();
    out.lines(table_of(columns_for(result, std::move(rows)), kNumbers));
  }
  if (!result.objects.empty()) {
    std::vector<std::vector<std::string>> rows{{"OBJECT", "VALUE"}};
    for (const auto& object : result.objects) rows.push_back({object.name, object.value});
    out.line();
    out.lines(table_of(std::move(rows), kNumbers));
  }
  if (!result.files.empty()) {
    std::vector<std::vector<std::string>> rows{{has_one_file(result.kind) ? "RECORD" : "FILE", "BYTES"}};
    for (const InspectedFile& file : result.files) {
      rows.push_back({file.name, file.missing ? "missing" : std::to_string(file.bytes)});
    }
    out.line();
    out.lines(table_of(std::move(rows), kNumbers));
  }
}

Json to_json(const Inspection& result) {
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
  document["tensors"] = Json::array();
  for (const InspectedTensor& tensor : result.tensors) {
    check_interrupted();
    Json entry{{"name", tensor.name},
               {"dtype", ckpt::torch_name(tensor.dtype)},
               {"shape", tensor.shape},
               {"bytes", tensor.bytes}};
    if (tensor.dtype == ckpt::DType::kUnknown) entry["bytes"] = nullptr;
    if (!has_one_file(result.kind)) {
      entry["chunks"] = tensor.chunks;
      entry["copies"] = tensor.copies;
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

/// What a checkpoint of a training says of its run, if `path` is one.
std::optional<ckpt::RunState> run_of(const fs::path& path) {
  const fs::path file = path / ckpt::kRunStateName;
  // A Trainer of transformers gives the same name to a file of its own.
  if (!fs::exists(file) || !fs::exists(path / ckpt::kManifestName)) return std::nullopt;
  try {
    return ckpt::read_run_state(file);
  } catch (const Error& error) {
    // The tensors can be shown nevertheless.
    log::warn(error.message());
    return std::nullopt;
  }
}

std::optional<std::string> why_not_whole(const fs::path& path, const ckpt::RunState& run) {
  try {
    return ckpt::why_not_whole(path, run.step);
  } catch (const Error& error) {
    return error.message();
  }
}

/// Empty in a checkpoint of an earlier accel, which did not say it.
std::string layout_of(const ckpt::RunState& run) {
  const auto found = run.settings.find(ckpt::kLayoutSetting);
  return found == run.settings.end() ? "" : found->second;
}

void print_run(const fs::path& path, const ckpt::RunState& run, Results& out) {
  struct stat info {};
  const bool has_time = ::stat((path / ckpt::kRunStateName).c_str(), &info) == 0;
  const auto why = why_not_whole(path, run);
  out.line(fmt::format("{}: checkpoint of a training", path.string()));
  const std::string layout = layout_of(run);
  out.line(fmt::format("  step {}, epoch {:.3f}, lr {:.3g}, seed {}, written by {} {}{}{}; {}", run.step,
                       run.epoch, run.lr, run.seed, run.world_size, run.world_size == 1 ? "rank" : "ranks",
                       layout.empty() ? "" : fmt::format(" ({})", layout),
                       has_time ? " at " + format_time(info.st_mtim.tv_sec) : "",
                       why ? "not whole: " + *why : "whole"));
  out.line();
}

void print_json(const std::string& path, const ckpt::InspectedDirectory& found, Results& out) {
  Json document{{"path", path}, {"checkpoints", Json::array()}, {"damaged", Json::array()}};
  if (const auto run = run_of(path)) {
    document["run"] = {{"step", run->step},
                       {"epoch", run->epoch},
                       {"lr", run->lr},
                       {"seed", run->seed},
                       {"world_size", run->world_size},
                       {"layout", layout_of(*run).empty() ? Json() : Json(layout_of(*run))},
                       {"whole", !why_not_whole(path, *run)}};
  }
  for (const Inspection& result : found.checkpoints) document["checkpoints"].push_back(to_json(result));
  for (const ckpt::DamagedCheckpoint& damaged : found.damaged) {
    document["damaged"].push_back({{"path", damaged.path.string()}, {"text", damaged.why}});
  }
  out.json(document);
}

ExitCode run_inspect(const std::string& path, const Globals& globals) {
  const ckpt::InspectedDirectory found = ckpt::inspect_all(path);
  if (globals.json) {
    print_json(path, found, *globals.out);
  } else {
    if (const auto run = run_of(path)) print_run(path, *run, *globals.out);
    for (const Inspection& result : found.checkpoints) {
      if (&result != &found.checkpoints.front()) globals.out->line();
      print_text(result, *globals.out);
    }
  }
  if (found.damaged.empty()) return ExitCode::kSuccess;
  globals.out->flush();
  throw Error(ErrorKind::kMissing,
              fmt::format("'{}' holds an incomplete checkpoint: {}", path, to_string(found.damaged)))
      .hint("'accel verify' lists all that is wrong");
}

}  // namespace

void add_inspect(CommandLine& line) {
  Command command = line.add("inspect", "Show what is in a checkpoint or model; no pickle code is run");
  auto path = std::make_shared<std::string>();
  command.positional("PATH", *path, "A checkpoint, a model file, or a directory of checkpoints");
  command.does([path](const Globals& globals) { return run_inspect(*path, globals); });
}

}  // namespace accel::cli
