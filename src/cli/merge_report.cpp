#include "cli/merge_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/text.hpp"
#include "ckpt/convert/plan_text.hpp"
#include "cli/results.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path path_of(const MergeReport& report, const ckpt::OutputFile& file) {
  return report.target.is_file ? report.target.path : report.target.path / file.name;
}

std::size_t written_tensors(const MergeReport& report) {
  const auto& items = report.plan.state.tensors;
  return static_cast<std::size_t>(
      std::count_if(items.begin(), items.end(), [](const ckpt::OutputItem& item) { return !item.tied_to; }));
}

Json to_json(const MergeReport& report) {
  Json document;
  document["path"] = path_of(report, report.plan.output.files.back()).string();
  document["source"] = report.source.path().string();
  document["kind"] = ckpt::name_of(report.source.kind());
  document["tensors"] = written_tensors(report);
  document["bytes"] = report.plan.output.total_bytes();
  document["files"] = Json::array();
  for (const ckpt::OutputFile& file : report.plan.output.files) {
    document["files"].push_back({{"path", path_of(report, file).string()}, {"bytes", file.bytes}});
  }
  document["tied"] = Json::object();
  for (const ckpt::OutputItem& item : report.plan.state.tensors) {
    if (!item.tied_to) continue;
    document["tied"][ckpt::fqn_of(item.path)] = ckpt::fqn_of(report.plan.state.tensors[*item.tied_to].path);
  }
  document["left_out"] = report.plan.left_out;
  return document;
}

Json segments_of(const MergeReport& report, const ckpt::OutputFile& file) {
  Json segments = Json::array();
  const std::vector<std::string> names = ckpt::names_in_output(report.plan.state, report.source);
  for (const ckpt::OutputSegment& segment : file.segments) {
    const auto* tensor = std::get_if<ckpt::TensorContent>(&segment.content);
    if (tensor == nullptr) continue;
    const ckpt::TensorEntry& entry = report.source.tensors()[tensor->source];
    Json pieces = Json::array();
    for (const ckpt::Extent& extent : report.source.locate(tensor->source).extents) {
      pieces.push_back({{"file", extent.file},
                        {"offset", extent.offset},
                        {"tensor_offsets", extent.box.offsets},
                        {"sizes", extent.box.sizes}});
    }
    segments.push_back({{"name", names.at(tensor->source)},
                        {"tensor", entry.name},
                        {"dtype", ckpt::torch_name(tensor->dtype)},
                        {"shape", entry.shape},
                        {"pieces", std::move(pieces)},
                        {"offset", segment.offset},
                        {"bytes", segment.bytes}});
  }
  return segments;
}

}  // namespace

void print_plan(const MergeReport& report, const Globals& globals) {
  if (!globals.json) {
    globals.out->lines(ckpt::describe(report.plan.output, report.source,
                                      ckpt::names_in_output(report.plan.state, report.source)));
    globals.out->line(fmt::format("{} tensors, {}; would be written to {}", written_tensors(report),
                                  format_bytes(report.plan.output.total_bytes()),
                                  report.target.path.string()));
    return;
  }
  Json document = to_json(report);
  document["plan"] = Json::array();
  for (const ckpt::OutputFile& file : report.plan.output.files) {
    document["plan"].push_back(
        {{"file", path_of(report, file).string()}, {"segments", segments_of(report, file)}});
  }
  globals.out->json(document);
}

void print_result(const MergeReport& report, const Globals& globals) {
  const std::uint64_t bytes = report.plan.output.total_bytes();
  const double rate = report.seconds > 0 ? static_cast<double>(bytes) / report.seconds : 0;
  if (globals.json) {
    Json document = to_json(report);
    document["seconds"] = report.seconds;
    document["bytes_per_second"] = rate;
    document["verified"] = report.verified;
    document["removed"] = report.removed;
    globals.out->json(document);
    return;
  }
  const std::size_t files = report.plan.output.files.size();
  globals.out->line(fmt::format(
      "{}: {} tensors, {} ({} bytes){} in {} ({}/s){}",
      path_of(report, report.plan.output.files.back()).string(), written_tensors(report), format_bytes(bytes),
      bytes, files > 1 ? fmt::format(" in {} files", files) : "", format_duration(report.seconds),
      format_bytes(static_cast<std::uint64_t>(rate)), report.verified ? ", verified" : ""));
  if (report.removed) globals.out->line("removed " + report.source.path().string());
}

}  // namespace accel::cli
