#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/host/cpus.hpp"
#include "base/host/memory.hpp"
#include "base/host/numa.hpp"
#include "base/host/system.hpp"
#include "base/interrupt.hpp"
#include "base/text.hpp"
#include "cli/launch/launch_flags.hpp"
#include "cli/line/build_info.hpp"
#include "cli/line/commands.hpp"
#include "cli/output/results.hpp"
#include "core/launch/agent/process.hpp"
#include "core/launch/find_program.hpp"
#include "core/launch/world/machine.hpp"
#include "core/machine/batch_system.hpp"
#include "core/machine/gpus.hpp"
#include "core/machine/python.hpp"
#include "core/machine/variables.hpp"

namespace accel::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The worker that `accel launch` would start, or why it would find none.
struct Worker {
  std::string path;
  std::string why_not;
};

/// The sizes of the file system that CPU ranks share memory in; 0 if it is not there.
struct SharedMemory {
  std::uint64_t bytes = 0;
  std::uint64_t free_bytes = 0;
};

/// All that the command shows.
struct Facts {
  Worker worker;
  Processor processor = accel::processor();
  std::vector<int> cpus = allowed_cpus();
  int physical_cores = launch::physical_cores();
  std::optional<double> quota = cpu_quota();
  std::uint64_t memory_bytes = total_memory_bytes();
  std::uint64_t available_bytes = available_memory_bytes();
  std::optional<std::uint64_t> memory_limit = memory_limit_bytes();
  std::map<int, std::vector<int>> nodes;  ///< The CPUs of each NUMA node.
  SharedMemory shared;
  machine::Gpus gpus;
  int visible_gpus = launch::visible_gpus(environment_variable);
  machine::BatchSystem batch = machine::find_batch_system(environment_variable);
  machine::Python python;
  std::map<std::string, std::string> variables = machine::relevant_variables(launch::merged_environment({}));
};

Worker find_worker() {
  try {
    return {launch::find_worker(fs::read_symlink("/proc/self/exe"), {}, environment_variable).string(), ""};
  } catch (const Error& error) {
    return {"", error.advice().empty() ? error.message() : error.message() + "; " + error.advice()};
  }
}

SharedMemory shared_memory() {
  std::error_code error;
  const fs::space_info space = fs::space("/dev/shm", error);
  return error ? SharedMemory{} : SharedMemory{space.capacity, space.available};
}

Facts gather() {
  const auto interrupted = [] {
    check_interrupted();
    return false;
  };
  Facts facts;
  facts.worker = find_worker();
  for (const auto& [cpu, node] : nodes_of_cpus()) facts.nodes[node].push_back(cpu);
  facts.shared = shared_memory();
  facts.gpus = machine::find_gpus(interrupted);
  facts.python = machine::find_python(environment_variable, interrupted);
  return facts;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json document_of(const Facts& facts) {
  Json document;
  document["accel"] = {{"version", kBuildInfo.version},
                       {"commit", kBuildInfo.commit},
                       {"libtorch", kBuildInfo.libtorch},
                       {"nccl", kBuildInfo.nccl}};
  document["worker"] = {{"path", text_or_null(facts.worker.path)},
                        {"why_not", text_or_null(facts.worker.why_not)}};
  document["kernel"] = kernel_name();
  document["distribution"] = text_or_null(distribution_name());
  document["processor"] = {{"model", text_or_null(facts.processor.model)},
                           {"features", facts.processor.features}};
  document["cpus"] = {
      {"allowed", facts.cpus}, {"physical_cores", facts.physical_cores}, {"quota", or_null(facts.quota)}};
  document["memory"] = {{"bytes", facts.memory_bytes},
                        {"available_bytes", facts.available_bytes},
                        {"limit_bytes", or_null(facts.memory_limit)}};
  document["numa_nodes"] = Json::array();
  for (const auto& [node, cpus] : facts.nodes)
    document["numa_nodes"].push_back({{"node", node}, {"cpus", cpus}});
  document["shm"] = {{"bytes", facts.shared.bytes}, {"free_bytes", facts.shared.free_bytes}};
  document["gpus"] = Json::array();
  for (const machine::Gpu& gpu : facts.gpus.gpus)
    document["gpus"].push_back(
        {{"name", text_or_null(gpu.name)}, {"memory_bytes", or_null(gpu.memory_bytes)}});
  document["visible_gpus"] = facts.visible_gpus;
  document["driver"] = text_or_null(facts.gpus.driver);
  document["batch_system"] = {{"found", facts.batch.found},
                              {"num_machines", or_null(facts.batch.num_machines)},
                              {"machine_rank", or_null(facts.batch.machine_rank)},
                              {"why_not", text_or_null(facts.batch.why_not)}};
  document["python"] = nullptr;
  if (!facts.python.path.empty()) {
    document["python"] = {{"path", facts.python.path}, {"version", text_or_null(facts.python.version)}};
    for (const char* name : {"torch", "accelerate"}) {
      const auto version = facts.python.packages.find(name);
      document["python"][name] =
          version == facts.python.packages.end() ? Json(nullptr) : Json(version->second);
    }
  }
  document["variables"] = facts.variables;
  return document;
}

/// Rows of a name and a text. A row without a name goes on from the one above.
using Rows = std::vector<std::pair<std::string, std::string>>;

std::string plural(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string or_not_known(std::string text) { return text.empty() ? "not known" : std::move(text); }

void add_machine(const Facts& facts, Rows& rows) {
  rows.emplace_back("kernel", kernel_name());
  rows.emplace_back("distribution", or_not_known(distribution_name()));
  rows.emplace_back("processor", or_not_known(facts.processor.model));
  if (!facts.processor.features.empty())
    rows.emplace_back("", fmt::format("{}", fmt::join(facts.processor.features, " ")));
  rows.emplace_back("CPUs", fmt::format("{} allowed ({}), {}", facts.cpus.size(), list_of_cpus(facts.cpus),
                                        plural(static_cast<std::size_t>(facts.physical_cores), "core")));
  if (facts.quota)
    rows.emplace_back("", fmt::format("a control group limits them to the time of {:g}", *facts.quota));
  rows.emplace_back("memory", fmt::format("{}, {} available", format_bytes(facts.memory_bytes),
                                          format_bytes(facts.available_bytes)));
  if (facts.memory_limit)
    rows.emplace_back("", fmt::format("a control group limits it to {}", format_bytes(*facts.memory_limit)));
  std::vector<std::string> nodes;
  for (const auto& [node, cpus] : facts.nodes)
    nodes.push_back(fmt::format("{} (CPUs {})", node, list_of_cpus(cpus)));
  rows.emplace_back("NUMA nodes", or_not_known(fmt::format("{}", fmt::join(nodes, ", "))));
  rows.emplace_back("/dev/shm", facts.shared.bytes == 0
                                    ? "none"
                                    : fmt::format("{}, {} free", format_bytes(facts.shared.bytes),
                                                  format_bytes(facts.shared.free_bytes)));
}

void add_gpus(const Facts& facts, Rows& rows) {
  const machine::Gpus& gpus = facts.gpus;
  std::string name = "GPUs";
  for (std::size_t i = 0; i < gpus.gpus.size(); ++i) {
    const machine::Gpu& gpu = gpus.gpus[i];
    std::string text = fmt::format("{}: {}", i, or_not_known(gpu.name));
    if (gpu.memory_bytes) text += ", " + format_bytes(*gpu.memory_bytes);
    rows.emplace_back(std::exchange(name, ""), text);
  }
  const auto visible = static_cast<std::size_t>(facts.visible_gpus);
  if (gpus.gpus.empty() && visible == 0) rows.emplace_back(std::exchange(name, ""), "none");
  if (visible != gpus.gpus.size())
    rows.emplace_back(std::exchange(name, ""), plural(visible, "GPU") + " visible to a rank");
  if (!gpus.why_less.empty()) rows.emplace_back(std::exchange(name, ""), gpus.why_less);
  rows.emplace_back("NVIDIA driver", gpus.driver.empty() ? "none" : gpus.driver);
}

void add_batch_system(const machine::BatchSystem& batch, Rows& rows) {
  rows.emplace_back("batch system",
                    batch.found.empty() ? "none" : fmt::format("{}", fmt::join(batch.found, "; ")));
  if (batch.num_machines && batch.machine_rank)
    rows.emplace_back("", fmt::format("this is machine {} of {}", *batch.machine_rank, *batch.num_machines));
  if (!batch.why_not.empty()) rows.emplace_back("", "accel launch cannot start here: " + batch.why_not);
}

void add_python(const machine::Python& python, Rows& rows) {
  if (python.path.empty()) return rows.emplace_back("Python", "none"), void();
  const std::string version = python.version.empty() ? python.why_less : python.version;
  rows.emplace_back("Python", fmt::format("{}: {}", python.path, version));
  if (python.version.empty()) return;
  for (const char* name : {"torch", "accelerate"}) {
    const auto found = python.packages.find(name);
    rows.emplace_back("",
                      fmt::format("{} {}", name, found == python.packages.end() ? "none" : found->second));
  }
}

Rows rows_of(const Facts& facts) {
  Rows rows = {
      {"accel", fmt::format("{}, commit {}", kBuildInfo.version, kBuildInfo.commit)},
      {"built with", fmt::format("libtorch {}, NCCL {}", kBuildInfo.libtorch, kBuildInfo.nccl)},
      {"accel-worker", facts.worker.path.empty() ? facts.worker.why_not : facts.worker.path},
  };
  add_machine(facts, rows);
  add_gpus(facts, rows);
  add_batch_system(facts.batch, rows);
  add_python(facts.python, rows);
  if (facts.variables.empty()) rows.emplace_back("variables", "none");
  std::string name = "variables";
  for (const auto& [variable, value] : facts.variables)
    rows.emplace_back(std::exchange(name, ""), fmt::format("{}={}", variable, value));
  return rows;
}

ExitCode run_env(const Globals& globals) {
  const Facts facts = gather();
  if (globals.json) {
    globals.out->json(document_of(facts));
    return ExitCode::kSuccess;
  }
  const Rows rows = rows_of(facts);
  std::size_t width = 0;
  for (const auto& [name, text] : rows) width = std::max(width, name.size());
  for (const auto& [name, text] : rows) {
    std::string line = fmt::format("{:<{}}  {}", name, width, text);
    line.resize(line.find_last_not_of(' ') + 1);
    globals.out->line(line);
  }
  return ExitCode::kSuccess;
}

}  // namespace

void add_env(CommandLine& line) {
  Command command = line.add("env", "Show what a bug report needs: versions, this machine, its environment");
  command.does(run_env);
}

}  // namespace accel::cli
