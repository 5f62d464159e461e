#include "ckpt/verify/verify.hpp"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/seconds.hpp"
#include "base/text.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {
namespace {

using ckpt::Finding;
using ckpt::Verified;
using ckpt::VerifyReport;
using Json = nlohmann::ordered_json;

struct VerifyOptions {
  std::string path;
  unsigned threads = 0;
};

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void print_text(const VerifyReport& report, Results& out) {
  for (const Verified& checkpoint : report.checkpoints) {
    const std::string verdict =
        checkpoint.findings.empty() ? "ok" : plural(checkpoint.findings.size(), "finding");
    std::string contents =
        fmt::format("{}, {}", plural(checkpoint.files, "file"), format_bytes(checkpoint.bytes));
    if (checkpoint.kind != ckpt::kManifestKind)
      contents.insert(0, plural(checkpoint.tensors, "tensor") + ", ");
    out.verdict(fmt::format("{} ({}, {}): ", checkpoint.path.string(), checkpoint.kind, contents), verdict,
                checkpoint.findings.empty() ? Tone::kGood : Tone::kBad);
    for (const Finding& finding : checkpoint.findings) out.line("  " + ckpt::to_string(finding));
    for (const std::string& note : checkpoint.notes) out.line("  note: " + note);
  }
}

Json to_json(const Verified& checkpoint) {
  Json document{{"path", checkpoint.path.string()},  {"kind", checkpoint.kind},
                {"ok", checkpoint.findings.empty()}, {"tensors", checkpoint.tensors},
                {"files", checkpoint.files},         {"bytes", checkpoint.bytes},
                {"findings", Json::array()},         {"notes", checkpoint.notes}};
  for (const Finding& finding : checkpoint.findings) {
    Json entry{{"kind", name_of(finding.kind)}};
    if (!finding.file.empty()) entry["file"] = finding.file;
    if (!finding.tensor.empty()) entry["tensor"] = finding.tensor;
    if (finding.end != 0) {
      entry["begin"] = finding.begin;
      entry["end"] = finding.end;
    }
    entry["text"] = finding.text;
    document["findings"].push_back(std::move(entry));
  }
  return document;
}

void print_json(const std::string& path, const VerifyReport& report, double seconds, Results& out) {
  Json document{{"path", path},
                {"ok", report.findings() == 0},
                {"findings", report.findings()},
                {"summed_bytes", report.summed_bytes},
                {"seconds", seconds},
                {"checkpoints", Json::array()}};
  for (const Verified& checkpoint : report.checkpoints)
    document["checkpoints"].push_back(to_json(checkpoint));
  out.json(document);
}

ExitCode run_verify(const VerifyOptions& options, const Globals& globals) {
  const auto begin = std::chrono::steady_clock::now();
  ckpt::VerifyOptions verify_options;
  verify_options.threads = options.threads;
  verify_options.progress = globals.progress();
  const VerifyReport report = ckpt::verify(options.path, verify_options);
  const double seconds = seconds_since(begin);
  if (globals.json) {
    print_json(options.path, report, seconds, *globals.out);
  } else {
    print_text(report, *globals.out);
    const auto rate = static_cast<std::uint64_t>(static_cast<double>(report.summed_bytes) / seconds);
    log::debug(fmt::format("{} summed in {} ({}/s)", format_bytes(report.summed_bytes),
                           format_duration(seconds), format_bytes(rate)));
  }
  return report.findings() == 0 ? ExitCode::kSuccess : ExitCode::kFindings;
}

}  // namespace

void add_verify(CommandLine& line) {
  Command command = line.add(
      "verify", "Check a checkpoint: checksums, sizes, coverage, overlap; list everything that is wrong");
  auto options = std::make_shared<VerifyOptions>();
  command.positional("PATH", options->path, "A checkpoint, a model file, or a directory of checkpoints");
  command.integer("--threads", "N", options->threads,
                  "Threads that read and compute checksums (one per core, 2 to 4)", 1, 256);
  command.does([options](const Globals& globals) { return run_verify(*options, globals); });
}

}  // namespace accel::cli
