#include "cli/launch/plan_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cli/launch/group_report.hpp"
#include "cli/output/table.hpp"
#include "core/config/names.hpp"

namespace accel::cli {
namespace {

using Json = nlohmann::ordered_json;
using Lines = std::vector<std::string>;
using Rows = std::vector<Lines>;

std::string count_of(std::size_t count, const std::string& thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string policy_of(const config::FsdpConfig& fsdp) {
  std::string name(config::name_of(fsdp.auto_wrap_policy));
  switch (fsdp.auto_wrap_policy) {
    case config::WrapPolicy::kTransformer:
      return fmt::format("{} of {}", name, fmt::join(fsdp.transformer_layer_cls_to_wrap, ", "));
    case config::WrapPolicy::kSize:
      return fmt::format("{} of at least {} elements", name, fsdp.min_num_params);
    case config::WrapPolicy::kNone:
      break;
  }
  return name;
}

struct Sums {
  std::size_t tensors = 0;
  std::uint64_t ignored_bytes = 0;
  std::int64_t elements = 0;
  std::int64_t trainable = 0;
};

Sums sums_of(const Footprint& footprint) {
  Sums sums;
  for (const UnitFootprint& unit : footprint.units) {
    sums.tensors += unit.parameters;
    sums.elements += unit.elements;
    sums.trainable += unit.trainable;
    sums.ignored_bytes += unit.replicated_bytes;
  }
  return sums;
}

bool is_alike(const UnitFootprint& a, const UnitFootprint& b) {
  return a.class_name == b.class_name && a.parameters == b.parameters && a.elements == b.elements &&
         a.trainable == b.trainable && a.replicated_bytes == b.replicated_bytes;
}

// "8", or "2 x 4" for two replicas of four ranks; " x tp 2" if tensor parallelism cuts parameters as well.
std::string ranks_of(const Footprint& footprint) {
  const Mesh& mesh = footprint.mesh;
  const std::string parts = mesh.tp() == 1 ? "" : fmt::format(" x tp {}", mesh.tp());
  if (mesh.replicas() == 1) return std::to_string(mesh.shards()) + parts;
  return fmt::format("{} x {}{}", mesh.replicas(), mesh.shards(), parts);
}

std::string reshard_of(const config::FsdpConfig& fsdp) {
  return fsdp.reshard_size > 0 ? std::to_string(fsdp.reshard_size)
                               : fmt::format("{}", fsdp.reshard_after_forward);
}

// Consecutive units that are equal share one line.
void print_units(const Footprint& footprint, Results& out) {
  Rows rows = {{"UNITS", "CLASS", "MODULE", "TENSORS", "ELEMENTS", "TRAINABLE", "UNSHARDED"}};
  const std::vector<UnitFootprint>& units = footprint.units;
  for (std::size_t i = 0; i < units.size();) {
    std::size_t end = i + 1;
    while (end < units.size() && is_alike(units[i], units[end])) ++end;
    std::string module = units[i].module.empty() ? "(the root)" : units[i].module;
    if (end - i > 1) module += " to " + units[end - 1].module;
    rows.push_back({std::to_string(end - i), units[i].class_name, std::move(module),
                    std::to_string(units[i].parameters), std::to_string(units[i].elements),
                    std::to_string(units[i].trainable), format_bytes(units[i].unsharded_bytes)});
    i = end;
  }
  out.table(std::move(rows), {"UNITS", "TENSORS", "ELEMENTS", "TRAINABLE", "UNSHARDED"});
}

/// A table of numbers alone, which cannot be cut. If it is wider than the terminal, its columns become lines.
void print_numbers(Rows rows, Results& out) {
  const Lines titles = rows.front();
  const Lines lines = table_of(rows, titles);
  const std::size_t width = out.width().value_or(std::string::npos);
  if (std::ranges::all_of(lines, [&](const std::string& line) { return line.size() <= width; }))
    return out.lines(lines);
  Rows turned;
  for (std::size_t column = 0; column < titles.size(); ++column) {
    turned.emplace_back();
    for (Lines& row : rows) turned.back().push_back(row[column]);
  }
  const Lines numbers(turned.front().begin() + 1, turned.front().end());
  out.table(std::move(turned), numbers);
}

struct MemoryColumn {
  const char* name;
  std::uint64_t MemoryFootprint::*bytes;
  bool is_rare = false;  ///< The column is left out if it is zero for all footprints.
};

using Memory = MemoryFootprint;

constexpr MemoryColumn kOneMemory[] = {
    {"SHARD", &Memory::shard_bytes},         {"OPTIMIZER", &Memory::optimizer_bytes},
    {"GRADIENTS", &Memory::gradient_bytes},  {"GRAD TEMP", &Memory::gradient_temp_bytes},
    {"AUTOCAST", &Memory::cast_bytes, true}, {"UNSHARDED", &Memory::unsharded_bytes},
    {"BUFFERS", &Memory::replicated_bytes},  {"HOOK", &Memory::hook_bytes, true},
    {"TOTAL", &Memory::total_bytes},
};

constexpr MemoryColumn kHostAndGpu[] = {
    {"SHARD", &Memory::shard_bytes},
    {"OPTIMIZER", &Memory::optimizer_bytes},
    {"GRADIENTS", &Memory::gradient_bytes},
    {"ON HOST", &Memory::host_bytes},
    {"GRAD TEMP", &Memory::gradient_temp_bytes},
    {"AUTOCAST", &Memory::cast_bytes, true},
    {"UNSHARDED", &Memory::unsharded_bytes},
    {"COPIES", &Memory::copy_bytes},
    {"BUFFERS", &Memory::replicated_bytes},
    {"HOOK", &Memory::hook_bytes, true},
    {"ON GPU", &Memory::total_bytes},
};

void print_memory(const std::vector<Footprint>& footprints, Results& out) {
  const bool has_host = std::any_of(footprints.begin(), footprints.end(),
                                    [](const Footprint& f) { return f.memory.host_bytes > 0; });
  std::vector<MemoryColumn> columns;
  std::ranges::copy_if(has_host ? std::span<const MemoryColumn>(kHostAndGpu) : kOneMemory,
                       std::back_inserter(columns), [&](const MemoryColumn& column) {
                         return !column.is_rare || std::ranges::any_of(footprints, [&](const Footprint& f) {
                           return f.memory.*column.bytes > 0;
                         });
                       });
  Rows rows = {{"RANKS"}};
  for (const MemoryColumn& column : columns) rows.front().emplace_back(column.name);
  for (const Footprint& footprint : footprints) {
    rows.push_back({ranks_of(footprint)});
    for (const MemoryColumn& column : columns)
      rows.back().push_back(format_bytes(footprint.memory.*column.bytes));
  }
  print_numbers(std::move(rows), out);
}

void print_traffic(const std::vector<Footprint>& footprints, Results& out) {
  // Gradients are averaged over replicas. Those of ignored parameters are averaged over all ranks.
  const bool averages = std::any_of(footprints.begin(), footprints.end(), [](const Footprint& f) {
    return f.mesh.replicas() > 1 || f.average_bytes > 0;
  });
  Rows rows = {{"RANKS", "ALL-GATHERS", "REDUCE-SCATTERS", "CHECKPOINT", "PER RANK"}};
  if (averages) rows.front().insert(rows.front().begin() + 3, "ALL-REDUCES");
  for (const Footprint& footprint : footprints) {
    rows.push_back({ranks_of(footprint), format_bytes(footprint.gather_bytes),
                    format_bytes(footprint.reduce_bytes), format_bytes(footprint.checkpoint_bytes),
                    format_bytes(footprint.checkpoint_rank_bytes)});
    if (averages) rows.back().insert(rows.back().begin() + 3, format_bytes(footprint.average_bytes));
  }
  print_numbers(std::move(rows), out);
}

// Each unit's parameters. A parameter with several names goes by the first.
Json parameters_of(const ModelPlan& plan) {
  Json units = Json::array();
  for (const UnitPlan& unit : plan.units) {
    Json names = Json::array();
    for (const std::size_t index : unit.parameters)
      names.push_back(plan.structure.parameters[index].fqns.front());
    units.push_back({{"module", unit.module}, {"parameters", std::move(names)}});
  }
  return units;
}

// Each linear, and why it stays as it is; null if it computes in float8.
Json to_json(const LinearPlan& plan) {
  Json linears = Json::array();
  for (const PlannedLinear& linear : plan.linears) {
    linears.push_back({{"module", linear.module},
                       {"float8", linear.is_float8()},
                       {"kept_reason", linear.is_float8() ? Json() : Json(linear.kept_reason)}});
  }
  return linears;
}

// Each module with a style of tensor parallelism.
Json to_json(const TensorPlan& plan) {
  Json modules = Json::array();
  for (const TensorModule& module : plan.modules)
    modules.push_back({{"module", module.module}, {"style", name_of(module.style)}});
  return modules;
}

Json to_json(const UnitFootprint& unit) {
  return {{"module", unit.module},
          {"class", unit.class_name},
          {"tensors", unit.parameters},
          {"elements", unit.elements},
          {"trainable_elements", unit.trainable},
          {"padded_elements", unit.padded_elements},
          {"shard_bytes", unit.shard_bytes},
          {"gradient_bytes", unit.gradient_bytes},
          {"optimizer_bytes", unit.optimizer_bytes},
          {"unsharded_bytes", unit.unsharded_bytes},
          {"autocast_bytes", unit.cast_bytes},
          {"ignored_bytes", unit.replicated_bytes},
          {"ignored_training_bytes", unit.replicated_training_bytes},
          {"all_gather_bytes", unit.gather_bytes},
          {"reduce_scatter_bytes", unit.reduce_bytes},
          {"all_reduce_bytes", unit.average_bytes}};
}

Json to_json(const Footprint& footprint) {
  const MemoryFootprint& memory = footprint.memory;
  Json units = Json::array();
  for (const UnitFootprint& unit : footprint.units) units.push_back(to_json(unit));
  return {{"world_size", footprint.mesh.size()},
          {"replicas", footprint.mesh.replicas()},
          {"tp_size", footprint.mesh.tp()},
          {"memory",
           {{"shard_bytes", memory.shard_bytes},
            {"optimizer_bytes", memory.optimizer_bytes},
            {"gradient_bytes", memory.gradient_bytes},
            {"gradient_temp_bytes", memory.gradient_temp_bytes},
            {"autocast_bytes", memory.cast_bytes},
            {"unsharded_bytes", memory.unsharded_bytes},
            {"unsharded_parameter_bytes", memory.unsharded_parameter_bytes},
            {"unsharded_gradient_bytes", memory.unsharded_gradient_bytes},
            {"unsharded_units", memory.unsharded_units},
            {"kept_bytes", memory.group_shard_bytes},
            {"host_bytes", memory.host_bytes},
            {"copy_bytes", memory.copy_bytes},
            {"buffer_bytes", memory.replicated_bytes},
            {"hook_bytes", memory.hook_bytes},
            {"total_bytes", memory.total_bytes}}},
          {"traffic",
           {{"all_gather_bytes", footprint.gather_bytes},
            {"reduce_scatter_bytes", footprint.reduce_bytes},
            {"all_reduce_bytes", footprint.average_bytes}}},
          {"checkpoint",
           {{"bytes", footprint.checkpoint_bytes}, {"rank_bytes", footprint.checkpoint_rank_bytes}}},
          {"units", std::move(units)}};
}

}  // namespace

void print_plan_text(const PlanReport& report, Results& out) {
  const config::TrainingConfig& training = *report.config.training;
  const Footprint& first = report.footprints.front();
  const Sums sums = sums_of(first);
  out.line(
      fmt::format("{}: {}", training.model.path.string(), report.model.structure.modules.front().class_name));
  out.line(fmt::format("  {}, {} elements, {} trainable", count_of(sums.tensors, "parameter"), sums.elements,
                       sums.trainable));
  out.line(fmt::format("  {}: {}, reshard_after_forward {}", count_of(first.units.size(), "unit"),
                       policy_of(report.model.fsdp), reshard_of(report.model.fsdp)));
  out.line(fmt::format("  per step: {} micro-batch{} and {}{}", training.gradient_accumulation_steps,
                       training.gradient_accumulation_steps == 1 ? "" : "es", training.optimizer.type,
                       report.model.fsdp.activation_checkpointing ? ", with activation checkpointing" : ""));
  if (report.model.linears) {
    out.line(fmt::format("  {}, recipe {}", report.model.linears->summary(),
                         config::name_of(training.float8.recipe)));
  }
  if (report.model.tensors)
    out.line(fmt::format("  tensor parallelism: {}", report.model.tensors->summary()));
  if (const std::string& ignored = report.model.fsdp.ignored_modules; !ignored.empty()) {
    out.line(fmt::format("  ignored_modules {}: {} of parameters, on every rank", ignored,
                         format_bytes(sums.ignored_bytes)));
  }
  out.line();
  print_units(first, out);
  out.line();
  print_groups(parameter_groups(report.model.structure, report.model.optimizer), out);
  out.lines({"", "Memory per rank, without activations and libtorch itself:", ""});
  print_memory(report.footprints, out);
  out.lines({"", "Bytes that a rank sends per step, and bytes that a save writes:", ""});
  print_traffic(report.footprints, out);
}

void print_plan_json(const PlanReport& report, Results& out) {
  const config::TrainingConfig& training = *report.config.training;
  const Sums sums = sums_of(report.footprints.front());
  const config::FsdpConfig& fsdp = report.model.fsdp;
  Json document = {
      {"config", report.config_file},
      {"model", training.model.path.string()},
      {"tensors", sums.tensors},
      {"elements", sums.elements},
      {"trainable_elements", sums.trainable},
      {"auto_wrap_policy", config::name_of(fsdp.auto_wrap_policy)},
      {"reshard_after_forward", fsdp.reshard_after_forward},
      {"reshard_size", fsdp.reshard_size},
      {"ignored_modules", fsdp.ignored_modules},
      {"activation_checkpointing", fsdp.activation_checkpointing},
      {"offload_params", fsdp.offload_params},
      {"gradient_accumulation_steps", training.gradient_accumulation_steps},
      {"optimizer", training.optimizer.type},
      {"includes_activations", false},
      {"parameter_groups", json_of(parameter_groups(report.model.structure, report.model.optimizer))},
      {"units", parameters_of(report.model)},
      {"plans", Json::array()}};
  if (report.model.linears) document["linears"] = to_json(*report.model.linears);
  if (report.model.tensors) document["tp_plan"] = to_json(*report.model.tensors);
  for (const Footprint& footprint : report.footprints) document["plans"].push_back(to_json(footprint));
  out.json(document);
}

}  // namespace accel::cli
