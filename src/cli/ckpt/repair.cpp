#include "ckpt/verify/repair.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "ckpt/dcp/metadata_write.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using ckpt::Finding;
using ckpt::RepairScan;
using Json = nlohmann::ordered_json;

struct RepairOptions {
  std::string path;
  bool force = false;
  bool dry_run = false;
};

struct Repaired {
  fs::path directory;
  RepairScan scan;
  bool written = false;
};

Json to_json(const Repaired& repaired) {
  const RepairScan& scan = repaired.scan;
  Json document{{"path", repaired.directory.string()},
                {"written", repaired.written},
                {"ranks", scan.plans.size()},
                {"tensors", scan.tensors},
                {"objects", scan.objects},
                {"bytes", scan.bytes},
                {"findings", Json::array()}};
  for (const Finding& finding : scan.findings) {
    document["findings"].push_back({{"kind", name_of(finding.kind)},
                                    {"file", finding.file},
                                    {"tensor", finding.tensor},
                                    {"begin", finding.begin},
                                    {"end", finding.end},
                                    {"text", finding.text}});
  }
  return document;
}

void print_text(const Repaired& repaired, bool dry_run, Results& out) {
  const RepairScan& scan = repaired.scan;
  const std::string path = (repaired.directory / ".metadata").string();
  if (scan.findings.empty()) {
    out.line(fmt::format("{}: {} from {} files with {} tensors and {} objects, {}", path,
                         dry_run ? "would be rebuilt" : "rebuilt", scan.plans.size(), scan.tensors,
                         scan.objects, format_bytes(scan.bytes)));
    return;
  }
  out.line(path + ": cannot be rebuilt");
  for (const Finding& finding : scan.findings) out.line("  " + ckpt::to_string(finding));
}

ExitCode run_repair(const RepairOptions& options, const Globals& globals) {
  ckpt::RepairOptions repair_options;
  repair_options.progress = globals.progress();
  std::vector<Finding> findings;
  Json document{{"path", options.path}, {"checkpoints", Json::array()}};
  for (const fs::path& directory : ckpt::find_repairable(options.path, options.force)) {
    Repaired repaired{directory, ckpt::scan_for_repair(directory, repair_options), false};
    if (repaired.scan.findings.empty() && !options.dry_run) {
      ckpt::write_dcp_metadata(directory, repaired.scan.plans);
      repaired.written = true;
    }
    findings.insert(findings.end(), repaired.scan.findings.begin(), repaired.scan.findings.end());
    document["checkpoints"].push_back(to_json(repaired));
    if (!globals.json) print_text(repaired, options.dry_run, *globals.out);
  }
  if (globals.json) globals.out->json(document);
  if (findings.empty()) return ExitCode::kSuccess;
  globals.out->flush();
  throw Error(error_kind_of(findings), fmt::format("'{}' cannot be repaired: {} finding{}", options.path,
                                                   findings.size(), findings.size() == 1 ? "" : "s"))
      .hint("use an earlier checkpoint, or restore the files that are missing or damaged");
}

}  // namespace

void add_repair(CommandLine& line) {
  Command command = line.add("repair", "Rebuild the lost .metadata of a sharded checkpoint that accel wrote");
  auto options = std::make_shared<RepairOptions>();
  command.positional("PATH", options->path, "Directory of a checkpoint, or a directory above it");
  command.flag("--force", options->force, "Write .metadata again even if there is one that can be read");
  command.flag("--dry-run", options->dry_run, "Check everything and write nothing");
  command.does([options](const Globals& globals) { return run_repair(*options, globals); });
}

}  // namespace accel::cli
