#include "cli/output_report.hpp"

#include <fmt/format.h>

#include <map>

#include "base/text.hpp"
#include "ckpt/convert/plan_text.hpp"
#include "cli/results.hpp"

namespace accel::cli {
namespace {

using Json = nlohmann::ordered_json;

Json document_of(const OutputReport& report) {
  Json document{{"path", report.target.path.string()}, {"source", report.source.path().string()}};
  for (const auto& [key, value] : report.details.items()) document[key] = value;
  document["bytes"] = report.plan.total_bytes();
  document["files"] = Json::array();
  for (const ckpt::OutputFile& file : report.plan.files) {
    document["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  return document;
}

}  // namespace

void print_plan(const OutputReport& report, const Globals& globals) {
  if (globals.json) {
    Json document = document_of(report);
    document["dry_run"] = true;
    globals.out->json(document);
    return;
  }
  globals.out->lines(ckpt::describe(report.plan, report.source));
  globals.out->line("would be written to " + report.target.path.string());
}

void print_result(const OutputReport& report, const std::string& what, const Globals& globals) {
  const std::uint64_t bytes = report.plan.total_bytes();
  const double rate = report.seconds > 0 ? static_cast<double>(bytes) / report.seconds : 0;
  if (globals.json) {
    Json document = document_of(report);
    document["seconds"] = report.seconds;
    document["bytes_per_second"] = rate;
    globals.out->json(document);
    return;
  }
  const std::size_t files = report.plan.files.size();
  globals.out->line(fmt::format("{}: {}{}, {} ({} bytes) in {} ({}/s)", report.target.path.string(), what,
                                files > 1 ? fmt::format(" in {} files", files) : "", format_bytes(bytes),
                                bytes, format_duration(report.seconds),
                                format_bytes(static_cast<std::uint64_t>(rate))));
}

void add_dtype(Command& command, std::optional<ckpt::DType>& dtype) {
  const std::map<std::string, ckpt::DType> dtypes = {
      {"f32", ckpt::DType::kFloat32},   {"float32", ckpt::DType::kFloat32},
      {"bf16", ckpt::DType::kBFloat16}, {"bfloat16", ckpt::DType::kBFloat16},
      {"f16", ckpt::DType::kFloat16},   {"float16", ckpt::DType::kFloat16}};
  command.choice("--dtype", "TYPE", dtypes, dtype, "Convert floating-point tensors: f32, bf16 or f16");
}

void add_write_options(Command& command, bool& force, bool& dry_run, ckpt::WriteLimits& limits) {
  command.flag("--force", force, "Replace the output if it is there");
  command.flag("--dry-run", dry_run, "Print what would go where, and write nothing");
  command.size("--max-memory", limits.memory_bytes, "Memory to use (64MB); at least 16MB a thread");
  command.integer("--threads", "N", limits.threads, "Threads that read and write (2)", 1, 64);
}

}  // namespace accel::cli
