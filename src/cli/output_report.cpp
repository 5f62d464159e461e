#include "cli/output_report.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <ostream>

#include "base/text.hpp"

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

void print(const Json& document, std::ostream& out) {
  out << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace

void print_plan(const OutputReport& report, const Globals& globals) {
  if (globals.json) {
    Json document = document_of(report);
    document["dry_run"] = true;
    print(document, *globals.out);
    return;
  }
  *globals.out << ckpt::describe(report.plan, report.source)
               << fmt::format("would be written to {}\n", report.target.path.string());
}

void print_result(const OutputReport& report, const std::string& what, const Globals& globals) {
  const std::uint64_t bytes = report.plan.total_bytes();
  const double rate = report.seconds > 0 ? static_cast<double>(bytes) / report.seconds : 0;
  if (globals.json) {
    Json document = document_of(report);
    document["seconds"] = report.seconds;
    document["bytes_per_second"] = rate;
    print(document, *globals.out);
    return;
  }
  const std::size_t files = report.plan.files.size();
  *globals.out << fmt::format("{}: {}{}, {} ({} bytes) in {} ({}/s)\n", report.target.path.string(), what,
                              files > 1 ? fmt::format(" in {} files", files) : "", format_bytes(bytes), bytes,
                              format_duration(report.seconds),
                              format_bytes(static_cast<std::uint64_t>(rate)));
}

void add_dtype(CLI::App& command, std::optional<ckpt::DType>& dtype) {
  const std::map<std::string, ckpt::DType> dtypes = {
      {"f32", ckpt::DType::kFloat32},   {"float32", ckpt::DType::kFloat32},
      {"bf16", ckpt::DType::kBFloat16}, {"bfloat16", ckpt::DType::kBFloat16},
      {"f16", ckpt::DType::kFloat16},   {"float16", ckpt::DType::kFloat16}};
  command
      .add_option_function<std::string>(
          "--dtype", [&dtype, dtypes](const std::string& name) { dtype = dtypes.at(name); },
          "Convert floating-point tensors: f32, bf16 or f16")
      ->check(CLI::IsMember(dtypes).description(""))
      ->type_name("TYPE");
}

void add_write_options(CLI::App& command, bool& force, bool& dry_run, ckpt::WriteLimits& limits) {
  command.add_flag("--force", force, "Replace the output if it is there");
  command.add_flag("--dry-run", dry_run, "Print what would go where, and write nothing");
  command.add_option("--max-memory", limits.memory_bytes, "Memory to use (64MB); at least 16MB a thread")
      ->transform(CLI::AsSizeValue(true))
      ->type_name("SIZE");
  command.add_option("--threads", limits.threads, "Threads that read and write (2)")
      ->check(CLI::Range(1, 64).description(""))
      ->type_name("N");
}

}  // namespace accel::cli
