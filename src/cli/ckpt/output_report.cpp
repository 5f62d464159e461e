#include "cli/ckpt/output_report.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>
#include <variant>

#include "base/interrupt.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"
#include "ckpt/convert/plan_text.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path path_of(const OutputReport& report, const ckpt::OutputFile& file) {
  return report.target.is_file ? report.target.path : report.target.path / file.name;
}

Json document_of(const OutputReport& report) {
  Json document{
      {"path", report.path.string()}, {"source", report.source.path().string()}, {"tensors", report.tensors}};
  for (const auto& [key, value] : report.details.items()) document[key] = value;
  document["bytes"] = report.plan.total_bytes();
  document["files"] = Json::array();
  for (const ckpt::OutputFile& file : report.plan.files) {
    document["files"].push_back(
        {{"name", file.name}, {"path", path_of(report, file).string()}, {"bytes", file.bytes}});
  }
  return document;
}

Json boxes_of(const std::vector<ckpt::Box>& boxes) {
  Json list = Json::array();
  for (const ckpt::Box& box : boxes) list.push_back({{"offsets", box.offsets}, {"sizes", box.sizes}});
  return list;
}

// The segments of the file that hold tensors, and where the pieces of each tensor are in the source.
Json segments_of(const OutputReport& report, const ckpt::OutputFile& file) {
  Json segments = Json::array();
  for (const ckpt::OutputSegment& segment : file.segments) {
    check_interrupted();
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
    Json described{{"name", report.names.empty() ? entry.name : report.names.at(tensor->source)},
                   {"tensor", entry.name},
                   {"dtype", ckpt::torch_name(tensor->dtype)},
                   {"shape", entry.shape},
                   {"boxes", boxes_of(tensor->boxes)},
                   {"pieces", std::move(pieces)},
                   {"offset", segment.offset},
                   {"bytes", segment.bytes}};
    if (tensor->update) {
      described["update"] = {{"a", report.source.tensors()[tensor->update->a].name},
                             {"b", report.source.tensors()[tensor->update->b].name},
                             {"scaling", tensor->update->scaling},
                             {"transposed", tensor->update->transposed}};
    }
    segments.push_back(std::move(described));
  }
  return segments;
}

}  // namespace

void write_plan(OutputReport& report, const ckpt::WriteLimits& limits, const std::string& doing,
                const Globals& globals) {
  Progress progress(doing, report.plan.total_bytes(), globals.progress());
  ckpt::write_output(report.source, report.plan, report.target, limits, progress);
  report.seconds = progress.seconds();
}

void print_plan(const OutputReport& report, const Globals& globals) {
  if (!globals.json) {
    globals.out->lines(ckpt::describe(report.plan, report.source, report.names));
    globals.out->line(fmt::format("{} tensors, {}; would be written to {}", report.tensors,
                                  format_bytes(report.plan.total_bytes()), report.target.path.string()));
    return;
  }
  Json document = document_of(report);
  document["dry_run"] = true;
  document["plan"] = Json::array();
  for (const ckpt::OutputFile& file : report.plan.files) {
    document["plan"].push_back(
        {{"file", path_of(report, file).string()}, {"segments", segments_of(report, file)}});
  }
  globals.out->json(document);
}

void print_result(const OutputReport& report, const Globals& globals) {
  const std::uint64_t bytes = report.plan.total_bytes();
  const double rate = report.seconds > 0 ? static_cast<double>(bytes) / report.seconds : 0;
  if (globals.json) {
    Json document = document_of(report);
    document["seconds"] = report.seconds;
    document["bytes_per_second"] = rate;
    if (report.is_verified) document["verified"] = *report.is_verified;
    globals.out->json(document);
    return;
  }
  const std::size_t files = report.plan.files.size();
  globals.out->line(
      fmt::format("{}: {} tensors, {} ({} bytes){} in {} ({}/s){}", report.path.string(), report.tensors,
                  format_bytes(bytes), bytes, files > 1 ? fmt::format(" in {} files", files) : "",
                  format_duration(report.seconds), format_bytes(static_cast<std::uint64_t>(rate)),
                  report.is_verified.value_or(false) ? ", verified" : ""));
}

void add_dtype(Command& command, std::optional<ckpt::DType>& dtype) {
  const std::map<std::string, ckpt::DType> dtypes = {
      {"f32", ckpt::DType::kFloat32},   {"float32", ckpt::DType::kFloat32},
      {"bf16", ckpt::DType::kBFloat16}, {"bfloat16", ckpt::DType::kBFloat16},
      {"f16", ckpt::DType::kFloat16},   {"float16", ckpt::DType::kFloat16}};
  command.choice("--dtype", "TYPE", dtypes, dtype, "Convert floating-point tensors to f32, bf16 or f16");
}

void add_write_options(Command& command, WriteOptions& options) {
  command.flag("--force", options.force, "Replace the output if it exists");
  command.flag("--dry-run", options.dry_run, "Print which bytes would go where, and write nothing");
  command.size("--max-memory", options.limits.memory_bytes, "Memory to use (64MB); at least 16MB per thread");
  command.integer("--threads", "N", options.limits.threads, "Threads that read and write (2)", 1, 64);
}

ckpt::OutputTarget file_target(const std::filesystem::path& path, const WriteOptions& options) {
  ckpt::OutputTarget target;
  target.path = path;
  target.is_file = true;
  if (options.force) target.existing = AtomicFile::Existing::kReplace;
  return target;
}

void carry_out(OutputReport& report, const WriteOptions& options, const std::string& doing,
               const Globals& globals) {
  if (options.dry_run) return print_plan(report, globals);
  write_plan(report, options.limits, doing, globals);
  print_result(report, globals);
}

}  // namespace accel::cli
